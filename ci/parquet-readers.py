"""Compares stored runs as three readers see them; see ci/parquet-readers.

usage: parquet-readers.py DUMPPARQUET RUN_DIR...
"""

import json
import math
import os
import subprocess
import sys

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

ARROW = {
    "int64": pa.int64(),
    "double": pa.float64(),
    "string": pa.string(),
    "boolean": pa.bool_(),
    "timestamp_us_utc": pa.timestamp("us", tz="UTC"),
}
DUCK = {
    "int64": "BIGINT",
    "double": "DOUBLE",
    "string": "VARCHAR",
    "boolean": "BOOLEAN",
    "timestamp_us_utc": "TIMESTAMP WITH TIME ZONE",
}


def same(a, b):
    """First place at which two columns differ, or None. Types count: 1 is not True."""
    if len(a) != len(b):
        return f"{len(a)} values, {len(b)} wanted"
    for i, (x, y) in enumerate(zip(a, b)):
        if isinstance(y, int) and isinstance(x, float) and not isinstance(y, bool):
            y = float(y)  # JSON writes 2.0 as 2
        if type(x) is not type(y) or x != y:
            return f"row {i}: {x!r}, wanted {y!r}"
    return None


def with_pyarrow(path, want):
    f = pq.ParquetFile(path)
    meta = f.metadata
    if meta.num_rows != want["rows"]:
        yield f"{meta.num_rows} rows, wanted {want['rows']}"
    if meta.num_row_groups != want["row_groups"]:
        yield f"{meta.num_row_groups} row groups, wanted {want['row_groups']}"
    got = {k.decode(): v.decode() for k, v in (meta.metadata or {}).items()}
    if got != want["metadata"]:
        yield f"metadata {got}, wanted {want['metadata']}"
    schema = f.schema_arrow
    if schema.names != [c["name"] for c in want["columns"]]:
        yield f"columns {schema.names}"
        return
    table = f.read()
    for i, c in enumerate(want["columns"]):
        name, field, column = c["name"], schema.field(i), table.column(i)
        if field.type != ARROW[c["type"]]:
            yield f"{name}: type {field.type}, wanted {c['type']}"
            continue
        if field.nullable != c["nullable"]:
            yield f"{name}: nullable is {field.nullable}"
        if column.null_count != c["nulls"]:
            yield f"{name}: {column.null_count} nulls, wanted {c['nulls']}"
        if c["type"] == "timestamp_us_utc":
            column = column.cast(pa.int64())
        if diff := same(column.to_pylist(), c["values"]):
            yield f"{name}: {diff}"
        nulls = 0
        for g in range(meta.num_row_groups):
            chunk = meta.row_group(g).column(i)
            if chunk.compression != "SNAPPY":
                yield f"{name}: compression {chunk.compression}"
            stats = chunk.statistics
            if stats is None or not stats.has_null_count:
                yield f"{name}: row group {g} has no null count"
                continue
            nulls += stats.null_count
        if nulls != c["nulls"]:
            yield f"{name}: statistics say {nulls} nulls, there are {c['nulls']}"
        if c["type"] == "double" and any(v is not None and not math.isfinite(v) for v in c["values"]):
            yield f"{name}: a value is not finite"


def with_duckdb(db, path, want):
    rel = db.read_parquet(path)
    names = [c["name"] for c in want["columns"]]
    if rel.columns != names:
        yield f"columns {rel.columns}"
        return
    rows = db.execute("SELECT count(*) FROM read_parquet(?)", [path]).fetchone()[0]
    if rows != want["rows"]:
        yield f"{rows} rows, wanted {want['rows']}"
    for c, typ in zip(want["columns"], rel.types):
        name = c["name"]
        if str(typ) != DUCK[c["type"]]:
            yield f"{name}: type {typ}, wanted {DUCK[c['type']]}"
            continue
        expr = f'epoch_us("{name}")' if c["type"] == "timestamp_us_utc" else f'"{name}"'
        values = [r[0] for r in db.execute(f"SELECT {expr} FROM read_parquet(?)", [path]).fetchall()]
        if diff := same(values, c["values"]):
            yield f"{name}: {diff}"
        # Counted from statistics where the reader trusts them.
        nulls = db.execute(f'SELECT count(*) FROM read_parquet(?) WHERE "{name}" IS NULL', [path]).fetchone()[0]
        if nulls != c["nulls"]:
            yield f"{name}: {nulls} nulls, wanted {c['nulls']}"
        if c["type"] == "double":
            known = [v for v in c["values"] if v is not None]
            top = db.execute(f'SELECT max("{name}") FROM read_parquet(?)', [path]).fetchone()[0]
            if top != max(known, default=None):
                yield f"{name}: max is {top}"


def main(dump, runs):
    passed = failed = 0
    print(f"DuckDB {duckdb.__version__}, pyarrow {pa.__version__}")
    db = duckdb.connect()
    db.execute("SET preserve_insertion_order = true")
    for run in runs:
        lines = subprocess.run([dump, run], check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()
        for line in lines:
            want = json.loads(line)
            path = os.path.join(run, want["file"])
            for reader, problems in (("pyarrow", with_pyarrow(path, want)), ("DuckDB", with_duckdb(db, path, want))):
                try:
                    found = list(problems)
                except Exception as e:  # a reader that refuses a file is what we look for
                    found = [f"{type(e).__name__}: {e}"]
                for p in found:
                    print(f"{path}: {reader}: {p}")
                passed += not found
                failed += bool(found)
    print(f"{passed} passed, {failed} failed")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
