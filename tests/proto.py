"""The messages of `docs/program.proto` as protobuf's descriptors: a reader of the part of the language used there."""

import re
from pathlib import Path

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

PATH = Path(__file__).parent.parent / "docs" / "program.proto"
PACKAGE = "varlen_rnn"
_Field = descriptor_pb2.FieldDescriptorProto
_FIELD = re.compile(r'(required|optional|repeated) ([\w.]+) (\w+) = (\d+)(?: \[default = "?([\w-]+)"?\])?')


def _tokens(text):
    """Return what stands between `;`, `{` and `}`, each with the character that ends it."""
    text = " ".join(re.sub("//.*", "", text).split())
    return [(part.strip(), end) for part, end in re.findall(r"([^;{}]*)([;{}])", text)]


def _ranges(text):
    for part in text.removeprefix("reserved ").split(", "):
        first, _, last = part.partition(" to ")
        yield int(first), int(last or first)


def _read(tokens, add_message, add_enum, in_message=None):
    """Read declarations up to the end of the text, or of the message that they stand in."""
    for text, end in tokens:
        if end == "}" and not text:
            return
        if end == "{":
            kind, name = text.split(" ")
            made = {"message": add_message, "enum": add_enum}[kind](name=name)
            if kind == "message":
                _read(tokens, made.nested_type.add, made.enum_type.add, made)
            else:
                _read_enum(tokens, made)
        elif text.startswith("reserved "):
            for first, last in _ranges(text):
                in_message.reserved_range.add(start=first, end=last + 1)
        elif in_message is not None:
            label, kind, name, number, default = _FIELD.fullmatch(text).groups()
            field = in_message.field.add(name=name, number=int(number), label=f"LABEL_{label.upper()}")
            plain = f"TYPE_{kind.upper()}"
            if plain in _Field.Type.keys():
                field.type = plain
            else:
                field.type_name = kind  # protobuf finds out what it is
            if default is not None:
                field.default_value = default


def _read_enum(tokens, made):
    for text, end in tokens:
        if end == "}" and not text:
            return
        if text.startswith("reserved "):
            for first, last in _ranges(text):
                made.reserved_range.add(start=first, end=last)
        else:
            name, number = text.split(" = ")
            made.value.add(name=name, number=int(number))


def messages():
    """Return protobuf's classes of the messages, by name without the package."""
    tokens = iter(_tokens(PATH.read_text()))
    assert next(tokens) == ('syntax = "proto2"', ";")
    assert next(tokens) == (f"package {PACKAGE}", ";")
    file = descriptor_pb2.FileDescriptorProto(name="program.proto", package=PACKAGE, syntax="proto2")
    _read(tokens, file.message_type.add, file.enum_type.add)
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return {
        name.removeprefix(f"{PACKAGE}."): found
        for name, found in message_factory.GetMessageClassesForFiles(["program.proto"], pool).items()
    }, pool.FindFileByName("program.proto")
