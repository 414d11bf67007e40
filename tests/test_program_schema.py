"""The description of a program as JSON: held to `docs/program.proto` by protobuf itself, and its reader's refusals."""

import copy
import json
import math

import pytest
from google.protobuf import json_format

import varlen_rnn as vr
from tests import proto, recorded
from tests.each import check_each
from varlen_rnn.program.desc import ATTR_TYPES, Field
from varlen_rnn.program.format import schema
from varlen_rnn.tape.kinds import Type

CLASSES, FILE = proto.messages()
PROGRAMS = dict(recorded.everything())


def names_in(message):
    yield message.full_name.removeprefix("varlen_rnn."), message
    for nested in message.nested_types:
        yield from names_in(nested)


def kind_of(field):
    kind = field.message_type or field.enum_type
    if kind is not None:
        return kind.full_name.removeprefix("varlen_rnn.")
    return proto.descriptor_pb2.FieldDescriptorProto.Type.Name(field.type).removeprefix("TYPE_").lower()


def as_field(field):
    label = "required" if field.is_required else "repeated" if field.is_repeated else "optional"
    default = field.default_value if field.has_default_value else None
    return Field(label, kind_of(field), field.name, field.number, default)


def test_our_messages_are_those_of_the_proto():
    top = FILE.message_types_by_name.values()
    declared = {name: message for message in top for name, message in names_in(message)}
    assert declared.keys() == schema.MESSAGES.keys()
    for name, message in declared.items():
        assert tuple(as_field(field) for field in message.fields) == schema.MESSAGES[name], name
    enums = {
        "AttrType": FILE.enum_types_by_name["AttrType"],
        "VarType.Type": declared["VarType"].enum_types_by_name["Type"],
    }
    ours = {"AttrType": {name: number for name, (number, _) in ATTR_TYPES.items()}, "VarType.Type": Type.__members__}
    assert {name: {v.name: v.number for v in enum.values} for name, enum in enums.items()} == ours


@pytest.mark.slow
def test_protobuf_reads_what_we_write_and_we_read_what_it_writes():
    check_each(PROGRAMS, check_program)


def check_program(name):
    desc = PROGRAMS[name]().program.desc
    text = schema.to_json(desc)
    assert schema.from_json(text) == desc
    message = json_format.Parse(text, CLASSES["ProgramDesc"]())
    assert message.IsInitialized()
    assert len(message.blocks[0].ops) == len(desc.blocks[0].ops)
    printed = json_format.MessageToJson(message, preserving_proto_field_name=True)
    assert schema.from_json(printed) == desc
    again = CLASSES["ProgramDesc"].FromString(message.SerializeToString())
    assert schema.from_json(json_format.MessageToJson(again, preserving_proto_field_name=True)) == desc


VALUES = [True, False, 0, -1, 2**63 - 1, -(2**63), 0.0, -0.0, 0.1, 1e-320, 1e300, math.inf, -math.inf, "", "é\n\"", (),
          (0, -1, 2**62)]  # fmt: skip


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_every_constant_survives_protobuf(value):
    desc = vr.ProgramDesc((vr.BlockDesc(ops=(vr.OpDesc("any", attrs=(schema.Attr("a", value),)),)),))
    message = json_format.Parse(schema.to_json(desc), CLASSES["ProgramDesc"]())
    for text in (schema.to_json(desc), json_format.MessageToJson(message, preserving_proto_field_name=True)):
        (attr,) = schema.from_json(text).blocks[0].ops[0].attrs
        assert repr(attr.value) == repr(value)


def test_nan_survives():
    desc = vr.ProgramDesc((vr.BlockDesc(ops=(vr.OpDesc("any", attrs=(schema.Attr("a", math.nan),)),)),))
    assert math.isnan(schema.from_json(schema.to_json(desc)).blocks[0].ops[0].attrs[0].value)


GOOD = {
    "blocks": [
        {
            "idx": 0,
            "parent_idx": -1,
            "vars": [
                {"name": "x", "type": {"type": "LOD_TENSOR", "lod_tensor": {"tensor": {"data_type": "FP32"}}}},
            ],
            "ops": [
                {"type": "neg", "inputs": [{"parameter": "x", "arguments": ["x"]}]},
                {"type": "pow", "attrs": [{"name": "exponent", "type": "FLOAT", "f": 2}]},
            ],
        }
    ],
    "version": {"version": "1"},
}
X = ["blocks", 0, "vars", 0]
ATTR = ["blocks", 0, "ops", 1, "attrs", 0]
BAD = {
    "blocks": [([], "blocks", {}), ([], "blocks", None), ([], "blocks", "ab")],
    "blocks[0]": [(["blocks"], 0, []), (["blocks"], 0, None)],
    "'extra'": [([], "extra", 1)],
    "blocks[0].'extra'": [(["blocks", 0], "extra", 1), (["blocks", 0], "extra", None)],
    "blocks[0].vars[0].'Persistable'": [(X, "Persistable", True)],
    "blocks[0].idx": [(["blocks", 0], "idx", v) for v in (True, 0.0, "0", 2**31, None, ...)],
    "blocks[0].vars[0].name": [(X, "name", v) for v in (1, None, ["x"], "\ud800", ...)],
    "blocks[0].vars[0].persistable": [(X, "persistable", v) for v in (1, "true", None)],
    "blocks[0].vars[0].type": [(X, "type", "LOD_TENSOR"), (X, "type", ...)],
    "blocks[0].vars[0].type.type": [([*X, "type"], "type", v) for v in (7, "lod_tensor", "RAW", None, ...)],
    "blocks[0].vars[0].type.lod_tensor.lod_level": [([*X, "type", "lod_tensor"], "lod_level", v) for v in (True, "1")],
    "blocks[0].vars[0].type.lod_tensor.tensor.dims[1]": [
        ([*X, "type", "lod_tensor", "tensor"], "dims", [1, v])
        for v in (True, 1.0, "1.0", "", "0x1", "9" * 30, 2**63, -(2**63) - 1, None, [1])
    ],
    "blocks[0].ops[1].attrs[0].f": [(ATTR, "f", v) for v in (True, "2", "nan", None, 10**400, [])],
    "blocks[0].ops[1].attrs[0]": [(ATTR, "f", ...), (ATTR, "s", "two"), (ATTR, "type", "LONG")],
    "blocks[0].ops[1].attrs[0].type": [(ATTR, "type", v) for v in (1, "INT", "FLOATS", None)],
    "version": [([], "version", v) for v in (1, "1", None, ...)],
    "version.version": [(["version"], "version", v) for v in (2, "3", 1.5, True)],
}
BAD = [(path, *mutation) for path, mutations in BAD.items() for mutation in mutations]


def test_the_good_one_is_good():
    assert schema.from_json(json.dumps(GOOD)).blocks[0].ops[1].attrs[0].value == 2.0


@pytest.mark.parametrize(("path", "at", "key", "value"), BAD, ids=lambda value: repr(value)[:50])
def test_what_is_wrong_is_named(path, at, key, value):
    mutated = holder = copy.deepcopy(GOOD)
    for step in at:
        holder = holder[step]
    if value is ...:
        del holder[key]
    else:
        holder[key] = value
    with pytest.raises(vr.ProgramError) as caught:
        schema.from_json(json.dumps(mutated))
    assert str(caught.value).startswith(f"{path}: ")


TEXTS = {
    "": "JSON text",
    "{": "JSON text",
    "[" * 100_000: "JSON text",
    '{"blocks":' * 100_000: "JSON text",
    "1" * 10_000: "JSON text",
    '{"blocks": NaN}': "NaN, which is not JSON",
    '{"blocks": [], "blocks": []}': "'blocks' twice",
    '{"version": {"version": 1, "version": 1}}': "version: expected each field once, got 'version' twice",
    "[]": "description: expected a ProgramDesc",
    "null": "description: expected a ProgramDesc",
    '{"version": {"version": 2}, "later": []}': "a newer varlen_rnn wrote it",
    json.dumps(GOOD).replace('"f": 2', '"f": 1e999'): r"attrs\[0\].f: expected a finite number",
    " " * (schema.MOST_CHARACTERS + 1): "at most 67108864 characters",
}


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: repr(text[:30]))
def test_texts_that_hold_no_description(text):
    with pytest.raises(vr.ProgramError, match=TEXTS[text]):
        schema.from_json(text)
