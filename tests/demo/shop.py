"""A small shop: its tables, its first rows, and the business of a busy day.

The workload is seeded, so two runs make the same changes; only their pace differs.
"""

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.demo.kinds import MYSQL, Dialect

#: by name; words in braces are types of a `Dialect`
TABLES = {
    "customers": """
        id {identity} PRIMARY KEY, email VARCHAR(120) NOT NULL, name VARCHAR(80) NOT NULL,
        tier {tier} NOT NULL DEFAULT 'bronze', flags {flags} NOT NULL DEFAULT '',
        born DATE NULL, created_at {instant}(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6)""",
    "products": """
        sku VARCHAR(24) NOT NULL PRIMARY KEY, title VARCHAR(200) NOT NULL, price DECIMAL(10,2) NOT NULL,
        stock INT NOT NULL, weight_kg DOUBLE PRECISION NULL, photo {bytes} NULL, attributes {document} NULL""",
    "orders": """
        id {identity} PRIMARY KEY, customer_id {reference} NOT NULL,
        status {status} NOT NULL, placed_at {moment}(3) NOT NULL,
        total DECIMAL(12,2) NOT NULL, note TEXT NULL""",
    "order_lines": """
        order_id {reference} NOT NULL, line {small} NOT NULL, sku VARCHAR(24) NOT NULL,
        quantity {tiny} NOT NULL, price DECIMAL(10,2) NOT NULL, PRIMARY KEY (order_id, line)""",
    "payments": """
        id {digest} NOT NULL PRIMARY KEY, order_id {reference} NOT NULL, amount DECIMAL(12,2) NOT NULL,
        method VARCHAR(20) NOT NULL, took TIME(3) NULL, paid_at {moment}(0) NOT NULL""",
    "audit": """happened_at {moment}(6) NOT NULL, who VARCHAR(40) NOT NULL, what VARCHAR(200) NOT NULL""",
}

_NAMES = (
    "Ada",
    "Björn",
    "Chloé",
    "Dmitri",
    "Eun-ji",
    "Fatima",
    "Gaël",
    "Hanna",
    "Ines",
    "João",
    "Kofi",
    "Léa",
    "Mika",
    "Noor",
)
_THINGS = ("lamp", "chair", "kettle", "rug", "clock", "vase", "shelf", "mirror", "stool", "basket")
_STATUSES = ("paid", "sent", "returned")


@dataclass
class Shop:
    """One connection to the shop's database doing business; not for two threads."""

    #: of PyMySQL or psycopg, autocommitting
    connection: Any
    dialect: Dialect = MYSQL
    seed: int = 1

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.transactions = 0

    def create(self, customers: int = 2000, products: int = 500, orders: int = 3000) -> None:
        """Make the tables and the rows that are there before anybody syncs."""
        with self.connection.cursor() as cursor:
            for statement in self.dialect.before:
                cursor.execute(statement)
            for name, columns in TABLES.items():
                cursor.execute(f"CREATE TABLE {name} ({columns.format(**self.dialect.types)})")
            for statement in self.dialect.after:
                cursor.execute(statement)
            for start in range(0, customers, 500):
                cursor.executemany(
                    _INSERT_CUSTOMER, [self._customer(n) for n in range(start, min(start + 500, customers))]
                )
            cursor.executemany(_INSERT_PRODUCT, [self._product(n) for n in range(products)])
        for _ in range(orders):
            self._place_order()

    def do_business(self) -> None:
        """One transaction of a random kind."""
        kinds: tuple[tuple[Callable[[], None], int], ...] = (
            (self._place_order, 40),
            (self._move_order_on, 30),
            (self._reprice, 10),
            (self._sign_up, 10),
            (self._delete_order, 7),
            (self._rename_product, 3),
        )
        (kind,) = self.random.choices([k for k, _ in kinds], [weight for _, weight in kinds])
        try:
            kind()
        except self.dialect.meetings as refused:
            if not self.dialect.is_meeting(refused):
                raise
            self.connection.rollback()  # the other connection was first: this customer comes again later
        else:
            self.transactions += 1

    def _customer(self, number: int) -> tuple[object, ...]:
        pick = self.random
        name = f"{pick.choice(_NAMES)} {pick.choice(_NAMES)}"
        born = (
            None
            if pick.random() < 0.2
            else f"{pick.randint(1940, 2006)}-{pick.randint(1, 12):02}-{pick.randint(1, 28):02}"
        )
        return (
            f"customer{number}.{pick.getrandbits(24):x}@example.org",
            name,
            pick.choice(("", "news", "news,sms", "paper")),
            born,
        )

    def _product(self, number: int) -> tuple[object, ...]:
        pick = self.random
        colour, sizes = pick.choice(("red", "grün", "blue")), [pick.randint(1, 9), pick.randint(10, 20)]
        attributes = json.dumps({"colour": colour, "sizes": sizes}, ensure_ascii=False)
        weight = None if pick.random() < 0.1 else pick.random() * 20
        return (
            f"SKU-{number:05}",
            f"{pick.choice(_THINGS)} no. {number}",
            pick.randint(100, 90000) / 100,
            weight,
            pick.randbytes(12),
            attributes,
        )

    def _transaction(self, *statements: tuple[str, tuple[object, ...]]) -> None:
        with self.connection.cursor() as cursor:
            cursor.execute("BEGIN")
            for statement, arguments in statements:
                cursor.execute(statement, arguments)
            cursor.execute("COMMIT")

    def _place_order(self) -> None:
        """One transaction over four tables."""
        pick = self.random
        with self.connection.cursor() as cursor:
            cursor.execute("BEGIN")
            cursor.execute(
                "INSERT INTO orders (customer_id, status, placed_at, total, note)"
                " VALUES (%s, 'new', CURRENT_TIMESTAMP(3), 0, %s)",
                (pick.randint(1, 2000), None if pick.random() < 0.7 else "please ring twice 🔔"),
            )
            cursor.execute(self.dialect.last_id)
            (order,) = cursor.fetchone()
            lines = [
                (order, line, f"SKU-{pick.randrange(500):05}", pick.randint(1, 5), pick.randint(100, 90000) / 100)
                for line in range(1, pick.randint(2, 6))
            ]
            cursor.executemany("INSERT INTO order_lines VALUES (%s, %s, %s, %s, %s)", lines)
            cursor.execute(
                "UPDATE orders SET total = (SELECT SUM(quantity * price) FROM order_lines WHERE order_id = %s) "
                "WHERE id = %s",
                (order, order),
            )
            for _, _, sku, quantity, _ in lines[:1]:
                cursor.execute("UPDATE products SET stock = stock - %s WHERE sku = %s", (quantity, sku))
            cursor.execute("INSERT INTO audit VALUES (CURRENT_TIMESTAMP(6), 'shop', %s)", (f"order {order} placed",))
            cursor.execute("COMMIT")

    def _move_order_on(self) -> None:
        pick = self.random
        with self.connection.cursor() as cursor:
            cursor.execute("SELECT id, total FROM orders WHERE id >= %s ORDER BY id LIMIT 1", (pick.randint(1, 3000),))
            row = cursor.fetchone()
        if row is None:
            return
        order, total = row
        payment = (
            pick.randbytes(16),
            order,
            total,
            pick.choice(("card", "cash", "transfer")),
            f"00:00:{pick.randint(1, 59):02}.{pick.randrange(1000):03}",
        )
        self._transaction(
            ("UPDATE orders SET status = %s WHERE id = %s", (pick.choice(_STATUSES), order)),
            ("INSERT INTO payments VALUES (%s, %s, %s, %s, %s, CURRENT_TIMESTAMP(0))", payment),
        )

    def _reprice(self) -> None:
        sku = f"SKU-{self.random.randrange(500):05}"
        self._transaction(
            (
                "UPDATE products SET price = price * %s WHERE sku = %s AND price < 50000",
                (self.random.choice((0.9, 1.1)), sku),
            )
        )

    def _sign_up(self) -> None:
        self._transaction((_INSERT_CUSTOMER, self._customer(self.random.getrandbits(30))))

    def _delete_order(self) -> None:
        order = self.random.randint(1, 3000)
        self._transaction(
            ("DELETE FROM order_lines WHERE order_id = %s", (order,)),
            ("DELETE FROM payments WHERE order_id = %s", (order,)),
            ("DELETE FROM orders WHERE id = %s", (order,)),
        )

    def _rename_product(self) -> None:
        """Change a primary key: in the lake one row goes and one comes."""
        old = f"SKU-{self.random.randrange(500):05}"
        self._transaction(("UPDATE products SET sku = %s WHERE sku = %s", (f"{old}-{self.random.randrange(100)}", old)))


_INSERT_CUSTOMER = "INSERT INTO customers (email, name, flags, born) VALUES (%s, %s, %s, %s)"
_INSERT_PRODUCT = (
    "INSERT INTO products (sku, title, price, stock, weight_kg, photo, attributes) "
    "VALUES (%s, %s, %s, 1000000, %s, %s, %s)"
)
