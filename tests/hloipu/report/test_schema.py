"""The schema of profiles: it names every key that is written, and profiles keep to it."""

import json
from typing import Any

import pytest

import hloipu

_MNIST = "hlo_samples/mnist_train_step.hlo"
CASES: list[tuple[str, dict[str, Any]]] = [
    ("hlo_samples/newton_while.hlo", {}),
    (_MNIST, {"loop": 3, "feed": {"data": [4, 5]}, "outfeed": ["losses"]}),
    (_MNIST, {"ipus": 2, "stages": 2, "micro_batches": 4}),
    (_MNIST, {"set": {"memory.bytes_per_tile": 65_536, "memory.executable_bytes": 16_384}}),
]


def schema_and_record(file: str, options: dict[str, Any]) -> tuple[Any, Any]:
    program = hloipu.compile(file, target="gc200", over_memory="allow", **options)
    profile = program.profile()
    record = profile.record() | {"findings": [x.record() for x in program.findings(profile)]}
    return hloipu.profile_schema(), json.loads(json.dumps(record))


def unnamed(record: Any, schema: Any, root: Any, place: str = "") -> list[str]:
    """Return the keys of a record that its schema says nothing of."""
    if "$ref" in schema:
        schema = root["$defs"][schema["$ref"].rpartition("/")[2]]
    for one in schema.get("anyOf", ()):
        if one.get("type") != "null":
            schema = one
    if isinstance(record, list):
        return [x for n, each in enumerate(record)
                for x in unnamed(each, schema["items"], root, f"{place}/{n}")]  # fmt: skip
    if (
        not isinstance(record, dict)
        or "properties" not in schema
        or record.get("schema") == ("hloipu.memory")
    ):
        return []
    known = schema["properties"]
    found = [f"{place}/{key}" for key in record if key not in known]
    for key in record.keys() & known.keys():
        found += unnamed(record[key], known[key], root, f"{place}/{key}")
    return found


@pytest.mark.parametrize(("file", "options"), CASES)
def test_profiles_keep_to_their_schema(file: str, options: dict[str, Any]) -> None:
    schema, record = schema_and_record(file, options)
    assert not unnamed(record, schema, schema)
    # Totals are the sums of their parts.
    whole = record["lower_bound_cycles"]
    assert sum(record["by_bucket"].values()) == whole
    assert all(sum(row.values()) - row["ipu"] == whole for row in record["by_ipu"])
    for rows in ("steps", "origins"):
        assert sum(x["cycles"] for x in record[rows]) + record["by_bucket"]["idle"] == whole
    device = sum(record["device_by_bucket"].values())
    assert device == record["device_cycles"]
    assert device + record["host"]["stops_cycles"] + record["by_bucket"]["idle"] == whole
    peak = record["memory"]["peak"]
    assert sum(peak["parts"].values()) == peak["total_bytes"]
    for pipeline in record["pipelines"]:
        for position in pipeline["positions"]:
            for key in ("stash_bytes", "received_bytes", "remote_bytes"):
                assert sum(x[key] for x in position["shares"]) == position[key]


@pytest.mark.parametrize(("file", "options"), CASES)
def test_a_validator_accepts_profiles_and_refuses_others(
    file: str, options: dict[str, Any]
) -> None:
    jsonschema = pytest.importorskip("jsonschema", reason="the group `dev` has it")
    schema, record = schema_and_record(file, options)
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    validator.validate(record)
    for key, wrong in (("version", 1), ("steps", [{}]), ("by_bucket", {}), ("tile_use", 2)):
        assert not validator.is_valid(record | {key: wrong}), key
