"""Kafka Connect's schemas as Avro's, as the AvroConverter of Debezium's users has them.

Comes in: a schema as Kafka Connect's JsonConverter writes it (`Envelope.value_schema`). Goes out: Avro's, with
Connect's types, names, versions and parameters as properties (`connect.name`, ...), so that a sink connector gets what
it would get from Debezium. Pure.

Names are those of Debezium's schema.name.adjustment.mode=avro and field.name.adjustment.mode=avro: each sign that Avro
does not take is `_`, and one stands before a digit at a name's beginning. A namespace is adjusted part by part.
"""

import re

from spark_sink.export.rows import Struct

#: of Kafka Connect's type, that of Avro, and whether the property `connect.type` says the former
_TYPES = {
    "int16": ("int", True),
    "int32": ("int", False),
    "int64": ("long", False),
    "float": ("float", False),
    "double": ("double", False),
    "boolean": ("boolean", False),
    "string": ("string", False),
    "bytes": ("bytes", False),
}
_DECIMAL = "org.apache.kafka.connect.data.Decimal"
#: Avro's: a name, a definition, or a union
Schema = str | Struct | list["Schema"]
_ILLEGAL = re.compile(r"[^A-Za-z0-9_]")


class FieldsCollide(ValueError):
    """Two fields of a struct have one name in Avro; the argument says which."""


def adjusted(name: str) -> str:
    """As a name of Avro; a sign that is two of Java's is two `_`.

    >>> adjusted("unit price"), adjusted("2nd"), adjusted("größe"), adjusted("\U0001f600")
    ('unit_price', '_2nd', 'gr__e', '__')
    """
    found = _ILLEGAL.sub(lambda sign: "_" * (len(sign[0].encode("utf-16-le", "surrogatepass")) // 2), name)
    return found if found and not found[0].isdigit() else f"_{found}"


def adjusted_fullname(name: str) -> str:
    """
    >>> adjusted_fullname("shop-eu.2026.order lines.Value")
    'shop_eu._2026.order_lines.Value'
    """
    return ".".join(map(adjusted, name.split(".")))


def avro_schema(connect: Struct) -> Struct:
    """Raises `FieldsCollide`."""
    found = _schema(connect, set())
    assert isinstance(found, dict)
    return found


def _schema(connect: Struct, named: set[str]) -> Schema:
    """`named`: records that stand before, of which the name is enough."""
    found = _record(connect, named) if connect["type"] == "struct" else _primitive(connect)
    return ["null", found] if connect["optional"] else found


def _record(connect: Struct, named: set[str]) -> Schema:
    fullname = adjusted_fullname(connect["name"])
    if fullname in named:
        return fullname
    named.add(fullname)
    namespace, _, name = fullname.rpartition(".")
    fields: dict[str, Struct] = {}
    origins: dict[str, str] = {}
    for each in connect["fields"]:
        field = adjusted(each["field"])
        if origins.setdefault(field, each["field"]) != each["field"]:
            raise FieldsCollide(f"{origins[field]!r} and {each['field']!r} are both {field!r}")
        fields[field] = {"name": field, "type": _schema(each, named)} | ({"default": None} if each["optional"] else {})
    own = {"type": "record", "name": name, "namespace": namespace, "fields": list(fields.values())}
    return own | _properties(connect) | {"connect.name": fullname}


def _primitive(connect: Struct) -> Schema:
    type_, is_told = _TYPES[connect["type"]]
    own = _properties(connect) | ({"connect.name": connect["name"]} if "name" in connect else {})
    own |= {"connect.type": connect["type"]} if is_told else {}
    if connect.get("name") == _DECIMAL:
        own |= _decimal(connect["parameters"])
    return {"type": type_, **own} if own else type_


def _properties(connect: Struct) -> Struct:
    return {f"connect.{name}": connect[name] for name in ("version", "parameters") if name in connect}


def _decimal(parameters: Struct) -> Struct:
    """Nothing where Avro has no such decimal: with thousands alone, or more places than digits."""
    scale, precision = int(parameters["scale"]), int(parameters["connect.decimal.precision"])
    return {"logicalType": "decimal", "precision": precision, "scale": scale} if 0 <= scale <= precision else {}
