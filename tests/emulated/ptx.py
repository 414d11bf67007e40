"""Read the PTX of one kernel: its parameters, the memory that it declares, its statements.

    .entry double(.param .u64 double_param_0) { ld.param.u64 %rd1, [double_param_0]; ret; }

has one parameter of type `u64`, and the statements `ld.param.u64 %rd1, [double_param_0]` and `ret`.
"""

import re
from dataclasses import dataclass

# With any of these, threads wait for one another or share memory; without, a launch is a plain loop over its threads.
_MEETS = re.compile(
    r"\b(bar|barrier|shfl|vote|match|activemask|mma|nanosleep|cp\.async|fence|membar"
    r"|ld\.(acquire|volatile|relaxed)|atom\S*\.(cas|exch))\b|\.shared"
)
_SMALL = re.compile(r"\b(ld|st|atom|red)\.\S*\.[usbf](8|16)\b")


class Unsupported(Exception):
    """An instruction of PTX that has no translation here."""


@dataclass(frozen=True)
class Instruction:
    """An instruction without its guard, such as `ld.global.f32` with the operands `%f1` and `[%rd2+4]`."""

    op: str
    args: list[str]

    @property
    def parts(self):
        return self.op.split(".")

    @property
    def name(self):
        return self.parts[0]


@dataclass(frozen=True)
class Table:
    """Constants in global memory; without values, zeros."""

    align: int
    kind: str
    count: int
    values: str | None


def instruction(statement):
    """Return the instruction of a statement without its guard."""
    op, _, rest = statement.partition(" ")
    return Instruction(op, split_operands(rest))


def split_operands(text):
    """Return the operands of a list, in which braces and brackets hold commas of their own.

    Examples
    --------
    >>> split_operands("{%r1, %r2}, [%rd1+8], 3")
    ['{%r1, %r2}', '[%rd1+8]', '3']
    """
    out, depth, now = [], 0, ""
    for c in text:
        depth += (c in "{[(") - (c in "}])")
        if c == "," and not depth:
            out.append(now.strip())
            now = ""
        else:
            now += c
    return out + ([now.strip()] if now.strip() else [])


def split_statements(text):
    """Return the statements of a body: blocks of inline assembly are opened, operands in braces are kept."""
    out, depth, now = [], 0, ""
    for c in text:
        if c == ";" and not depth:
            out.append(" ".join(now.split()))
            now = ""
            continue
        if c == "{" and (depth or re.search(r"[\w.]", now)):
            depth += 1
        elif c == "}" and depth:
            depth -= 1
        elif c in "{}" and not now.strip():
            continue
        now += c
    return [statement for statement in (*out, " ".join(now.split())) if statement]


class Code:
    """A body of PTX: the text between its braces."""

    def __init__(self, body):
        self.body = body

    def statements(self):
        """Return labels, which end with a colon, and instructions with their guards; no declarations."""
        declared = r'\.(reg|local|shared|param)\s+[^;]+;|\.pragma\s+"[^"]*"\s*;|\.loc[^\n]*\n'
        return split_statements(re.sub(r"([\w$]+):(?!:)", r"\1: ;\n", re.sub(declared, "\n", self.body)))

    def registers(self):
        """Return pairs of type and name; `%f<3>` declares `%f0`, `%f1` and `%f2`."""
        found = []
        for kind, names in re.findall(r"\.reg\s+\.(\w+)\s+([^;]+);", self.body):
            for name in map(str.strip, names.split(",")):
                many = re.match(r"(%[\w$]+)<(\d+)>$", name)
                found += [(kind, f"{many[1]}{k}") for k in range(int(many[2]))] if many else [(kind, name)]
        return found

    def local_memory(self):
        """Return triples of alignment, name and size in bytes."""
        return re.findall(r"\.local\s+\.align\s+(\d+)\s+\.b8\s+([\w$]+)\[(\d+)\]\s*;", self.body)

    def passed(self):
        """Return the names of functions' arguments and results, 8 bytes each."""
        return list(dict.fromkeys(re.findall(r"\.param\s+\.b\d+\s+([\w$]+)\s*;", self.body)))


class Function(Code):
    """A function that kernels call, such as the power of float64.

    Attributes
    ----------
    name : str
    params : list of str
        What it gets, and then the result, 8 bytes each.
    body : str
    """

    def __init__(self, name, params, body):
        super().__init__(body)
        self.name, self.params = name, params


class Source(Code):
    """The kernel of a PTX text.

    Attributes
    ----------
    name : str
    params : list of (type, name)
    shared : dict of name to offset
        Variables in shared memory; the dynamic ones begin where the static ones end.
    static_bytes : int
        Size of the static shared memory.
    tables : dict of name to Table
    is_plain : bool
        Whether no thread waits for another, or shares memory with its block.
    unit : int
        The bytes of the smallest number that it reads or writes, 4 at most; races are found by units.
    functions : list of Function
    body : str
    """

    def __init__(self, ptx):
        text = re.sub(r"/\*.*?\*/", "", re.sub(r"//[^\n]*", "", ptx), flags=re.S)
        text, self.functions = _functions(text)
        entry = re.search(r"\.entry\s+([\w$]+)\s*\((.*?)\)\s*(.*?)\{(.*)\}", text, re.S)
        super().__init__(entry[4])
        self.name = entry[1]
        self.params = re.findall(r"\.param\s+(?:\.align\s+\d+\s+)?\.(\w+)\s+([\w$]+)", entry[2])
        self.is_plain = not _MEETS.search(text)
        self.unit = 1 if _SMALL.search(text) else 4
        self.shared, self.static_bytes = _shared_memory(text)
        self.tables = {
            name: Table(int(align or 8), kind, int(count or 1), values or None)
            for align, kind, name, count, values in re.findall(
                r"\.(?:global|const)\s+(?:\.align\s+(\d+)\s+)?\.(\w+)\s+([\w$]+)(?:\[(\d+)\])?"
                r"\s*(?:=\s*(\{[^}]*\}|[^;]+))?;",
                text,
            )
        }


def _functions(text):
    """Return the text without its functions, and these."""
    found, rest = [], ""
    while start := re.search(r"\.func\s*(?:\(([^)]*)\))?\s*([\w$]+)\s*\(([^)]*)\)\s*([;{])", text):
        rest, text = rest + text[: start.start()], text[start.end() :]
        if start[4] == "{":
            depth = end = 1
            while depth:
                end = re.compile(r"[{}]").search(text, end - 1).end() + 1
                depth += 1 if text[end - 2] == "{" else -1
            params = re.findall(r"\.b64\s+([\w$]+)", f"{start[3]},{start[1] or ''}")
            found.append(Function(start[2], params, text[: end - 2]))
            text = text[end - 1 :]
    return rest + text, found


def _shared_memory(text):
    """Return the offsets of variables in shared memory, and the size of the static ones."""
    static, dynamic, end = {}, [], 0
    for align, kind, name, brackets, count in re.findall(
        r"\.shared\s+(?:\.align\s+(\d+)\s+)?\.(\w+)\s+([\w$]+)(\[(\d*)\])?\s*;", text
    ):
        if brackets and not count:
            dynamic.append(name)
            continue
        static[name] = -(-end // int(align or 4)) * int(align or 4)
        end = static[name] + int(count or 1) * int(kind[1:]) // 8
    size = -(-end // 16) * 16
    return static | dict.fromkeys(dynamic, size), size
