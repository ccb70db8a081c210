"""Compares the schema of a database with the one that the migrations create. Pure."""

from collections.abc import Mapping

# The definition of each object of a schema by its name, such as "trigger passes_update".
SchemaObjects = Mapping[str, str]


def list_schema_faults(stored: SchemaObjects, created: SchemaObjects) -> list[str]:
    """Describe each object that the database lacks, has in addition, or has in another form."""
    faults = dict.fromkeys(created.keys() - stored.keys(), "is missing")
    faults |= dict.fromkeys(stored.keys() - created.keys(), "does not belong there")
    faults |= {
        name: "is not as the migrations create it"
        for name in stored.keys() & created.keys()
        if stored[name] != created[name]
    }
    return [f"{name} {faults[name]}" for name in sorted(faults)]
