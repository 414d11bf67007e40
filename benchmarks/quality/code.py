"""Tokens of Python functions, and the role of each: what a tagger can only know from far away."""

import ast
import io
import tokenize

SKIPPED = (tokenize.ENCODING, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
LONGEST = 400  # tokens


def tagged(text):
    r"""Return the tokens of a function and their roles, or None if it cannot be read or is longer than `LONGEST`.

    A name is an "argument", a "local" or a "global".  An "attribute" follows a dot.  Any other token is "other".

    Examples
    --------
    >>> tagged("def f(a):\n    b = a.c\n    return g(b)\n")[1][8:]
    ['argument', 'other', 'attribute', 'other', 'global', 'other', 'local', 'other']
    """
    try:
        tree = ast.parse(text)
        found = [token for token in tokenize.generate_tokens(io.StringIO(text).readline) if token.type not in SKIPPED]
    except (SyntaxError, tokenize.TokenError):
        return None
    if not 1 <= len(found) <= LONGEST:
        return None
    roles = _roles(tree)
    return [token.string for token in found], [roles.get(token.start, "other") for token in found]


def _roles(tree):
    """Return the role of each name by its line and column."""
    nodes = list(ast.walk(tree))
    arguments = {node.arg for node in nodes if isinstance(node, ast.arg)}
    stored = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    roles = {}
    for node in nodes:
        if isinstance(node, ast.Name):
            role = "argument" if node.id in arguments else "local" if node.id in stored else "global"
            roles[node.lineno, node.col_offset] = role
        elif isinstance(node, ast.arg):
            roles[node.lineno, node.col_offset] = "argument"
        elif isinstance(node, ast.Attribute):
            roles[node.end_lineno, node.end_col_offset - len(node.attr)] = "attribute"
    return roles
