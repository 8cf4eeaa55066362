"""What source pages take from the code: least grants, and what `menura doctor` looks at."""

from agent.sources.mysql.doctor import checks as mysql
from agent.sources.mysql.doctor import examination as mysql_doctor
from agent.sources.postgresql.doctor import checks as postgresql
from agent.sources.postgresql.doctor import examination as postgresql_doctor
from tests.docs_site.tables import cell, table

_DOCTORS = {"mysql": mysql_doctor, "mariadb": mysql_doctor, "postgresql": postgresql_doctor}
_CHECKS = {"mysql": mysql.checks, "mariadb": mysql.checks, "postgresql": postgresql.checks}


def grants(flavor: str) -> str:
    """As `menura agent grants` prints them."""
    database = "shop" if flavor == "postgresql" else ""
    lines = _DOCTORS[flavor].grants(flavor, "menura", "", database, ())
    return "```sql\n" + "\n".join(lines) + "\n```\n"


def checked(flavor: str) -> str:
    rows = [(f"`{each.name}`", cell(each.why)) for each in _CHECKS[flavor].all]
    return table(("check", "why"), rows)
