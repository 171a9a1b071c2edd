#!/usr/bin/env python3
"""Checks what no compiler checks, over the files that git knows.

  layers     an #include in cairn/ points down only, and only models, runtime and apps know ggml
  try        CAIRN_TRY never stands inside braces initialisation: the compilers leak what was already built
  getenv     the environment is read in two files only
  ownership  no shared_ptr in cairn/
  paths      no path of one person's machine in any file

usage: check_source.py [RULE...]     all rules when none is named; exits 1 and prints path:line: message per finding
       check_source.py --self-test   shows each rule good and bad snippets
"""
import os
import re
import subprocess
import sys

# Which folders of cairn/ a folder may include, besides itself.
BELOW = {"core": set()}
BELOW["io"] = BELOW["kernels"] = BELOW["memory"] = {"core"}
BELOW["encodings"] = {"kernels", "core"}
BELOW["state"] = {"encodings", "kernels", "memory", "core"}
BELOW["session"] = {"state"} | BELOW["state"]
BELOW["format"] = BELOW["store"] = {"io", "core"}
BELOW["engine"] = {"session", "format", "store"} | BELOW["session"] | BELOW["format"]
BELOW["models"] = {"session", "format"} | BELOW["session"] | BELOW["format"]
BELOW["runtime"] = {"models", "engine"} | BELOW["models"] | BELOW["engine"]

KNOWS_GGML = {"models", "runtime"}
READS_ENVIRONMENT = {"apps/config.cc", "cairn/kernels/dispatch.cc"}
UMBRELLA = "cairn/cairn.h"  # includes what embedders may use; nothing below apps/ includes it
CODE = (".h", ".cc", ".cu", ".cuh")


# --- the text of a C++ file ------------------------------------------------------------------------------------------

LITERAL = re.compile(
    r'//[^\n]*|/\*.*?\*/|R"(?P<mark>[^(\s]*)\(.*?\)(?P=mark)"|"(?:\\.|[^"\\\n])*"'
    r"|(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])+'",
    re.DOTALL)
DIRECTIVE = re.compile(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", re.MULTILINE)
TOKEN = re.compile(r"[A-Za-z_]\w*|->|::|\S")


def blank(match):
    return re.sub(r"[^\n]", " ", match.group())


def without_literals(text):
    """The text with comments and literals blanked out; lines and columns stay."""
    return LITERAL.sub(blank, text)


def without_comments(text):
    return LITERAL.sub(lambda match: blank(match) if match.group().startswith("/") else match.group(), text)


def line_of(text, offset):
    return text.count("\n", 0, offset) + 1


# --- rules: each takes (path, text) and yields (line, message) -------------------------------------------------------

def layers(path, text):
    folders = path.split("/")
    if not path.endswith(CODE) or folders[0] not in ("cairn", "apps"):
        return
    layer = folders[1] if folders[0] == "cairn" and len(folders) > 2 else None
    if folders[0] == "cairn" and layer not in BELOW and path != UMBRELLA:
        yield 1, f"no layer is named {layer}: add it to the table of tools/check_source.py"
        return
    for match in re.finditer(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^>"]+)[>"]', without_comments(text), re.MULTILINE):
        line, target = line_of(text, match.start()), match.group(2)
        if re.match(r"(ggml|gguf)[\w-]*\.h$", target) and layer is not None and layer not in KNOWS_GGML:
            yield line, f"{layer} includes {target}; only {', '.join(sorted(KNOWS_GGML))} and apps know ggml"
        elif target.startswith("apps/") and folders[0] == "cairn":
            yield line, f"{layer or UMBRELLA} includes {target}, which is above it"
        elif match.group(1) == '"' and (target.startswith(".") or "/" not in target):
            yield line, f'"{target}": include paths start at the root, as in "cairn/core/error.h"'
        elif target.startswith("cairn/") and layer is not None:
            other = target.split("/")[1]
            if other != layer and other not in BELOW[layer]:
                yield line, f"{layer} includes {target}; it may include only {', '.join(sorted({layer} | BELOW[layer]))}"


def opens_initialisation(tokens, opened):
    """Whether the brace that follows `tokens` begins a list of values; `opened` tells it of the brackets around it."""
    if not tokens:
        return False
    last = tokens[-1]
    if last in (")", ";", "}", ":", "else", "do", "try", "const", "noexcept", "override", "final", "mutable"):
        return False
    if last == "{":
        return opened[-1] == "{init"
    if last == "]":  # a lambda without parameters, or an array
        depth, at = 0, len(tokens)
        while at > 0:
            at -= 1
            depth += (tokens[at] == "]") - (tokens[at] == "[")
            if depth == 0:
                break
        before = tokens[at - 1] if at > 0 else ""
        return (before[:1].isalnum() or before[:1] == "_" or before in ("]", ")", ">")) and before != "return"
    statement, depth = [], 0
    for token in reversed(tokens):
        if depth == 0 and token in (";", "{", "}", "("):
            break
        depth += (token in (")", "]")) - (token in ("(", "["))
        statement.append(token)
    if {"namespace", "struct", "class", "union", "enum", "extern", "requires", "concept"} & set(statement):
        return False
    statement.reverse()  # a function or a lambda with its return type written behind
    for at, token in enumerate(statement):
        if token == "->" and at > 0 and statement[at - 1] in (")", "const", "noexcept", "mutable"):
            return False
    return True


def propagation(path, text):
    if not path.endswith(CODE):
        return
    text = DIRECTIVE.sub(blank, without_literals(text))
    tokens, opened = [], []
    for match in TOKEN.finditer(text):
        token = match.group()
        if token == "{":
            opened.append("{init" if opens_initialisation(tokens, opened) else "{")
        elif token in ("(", "["):
            opened.append(token)
        elif token in (")", "]", "}") and opened:
            opened.pop()
        elif token == "CAIRN_TRY":
            around = next((bracket for bracket in reversed(opened) if bracket.startswith("{")), "")
            if around == "{init":
                yield line_of(text, match.start()), "CAIRN_TRY inside braces: name the value first, then build"
        tokens.append(token)


def getenv(path, text):
    if not path.endswith(CODE) or not path.startswith(("cairn/", "apps/", "bench/", "capi/", "python/")):
        return
    if path in READS_ENVIRONMENT:
        return
    text = without_literals(text)
    for match in re.finditer(r"\b(?:secure_)?getenv\b|\benviron\b", text):
        yield line_of(text, match.start()), f"the environment is read in {' and '.join(sorted(READS_ENVIRONMENT))} only"


def ownership(path, text):
    if not path.endswith(CODE) or not path.startswith("cairn/"):
        return
    text = without_literals(text)
    for match in re.finditer(r"\b(?:make_shared|shared_ptr|weak_ptr)\b", text):
        yield line_of(text, match.start()), f"{match.group()}: own by value, unique_ptr or PageRef"


def paths(path, text):
    for match in re.finditer(r"(?<![\w.*>)}~-])/(?:work|root|home)/[\w.]", text):
        yield line_of(text, match.start()), "a path of one machine"


RULES = {"layers": layers, "try": propagation, "getenv": getenv, "ownership": ownership, "paths": paths}


# --- self-test: (rule, path, text, how many findings) ----------------------------------------------------------------

SNIPPETS = [
    ("layers", "cairn/state/a.cc", '#include "cairn/memory/memory.h"\n#include <vector>\n#include "hwy/highway.h"', 0),
    ("layers", "cairn/state/a.cc", '#include "cairn/session/session.h"', 1),
    ("layers", "cairn/state/a.cc", '  #  include   "cairn/session/session.h"', 1),
    ("layers", "cairn/state/a.cc", '// #include "cairn/session/session.h"', 0),
    ("layers", "cairn/memory/a.cc", '#include "cairn/kernels/softmax.h"', 1),
    ("layers", "cairn/session/a.cc", '#include "cairn/io/file.h"', 1),
    ("layers", "cairn/store/a.cc", '#include "cairn/io/file.h"', 0),
    ("layers", "cairn/store/a.cc", '#include "cairn/format/layout.h"', 1),
    ("layers", "cairn/models/a.cc", '#include "cairn/engine/snapshot.h"', 1),
    ("layers", "cairn/models/a.cc", "#include <ggml.h>\n#include <gguf.h>", 0),
    ("layers", "cairn/session/a.cc", "#include <ggml-cpu.h>", 1),
    ("layers", "cairn/engine/a.h", '#include "cairn/cairn.h"', 1),
    ("layers", "cairn/engine/a.h", '#include "snapshot.h"\n#include "../core/error.h"', 2),
    ("layers", "cairn/runtime/a.cc", '#include "apps/cli/options.h"', 1),
    ("layers", "cairn/cairn.h", '#include "cairn/engine/snapshot.h"\n#include "cairn/session/session.h"', 0),
    ("layers", "cairn/misc/a.h", "", 1),
    ("layers", "apps/cli/main.cc", '#include "cairn/runtime/generate.h"\n#include <ggml.h>', 0),
    ("try", "cairn/a.cc", "Result<int> f() {\n  auto x = CAIRN_TRY(g());\n  return h(CAIRN_TRY(g()), x);\n}", 0),
    ("try", "cairn/a.cc", "Result<P> f() { return P{CAIRN_TRY(g()), 1}; }", 1),
    ("try", "cairn/a.cc", "Result<P> f() { P p{.a = 1, .b = CAIRN_TRY(g())}; return p; }", 1),
    ("try", "cairn/a.cc", "Result<P> f() { std::vector<int> v = {1, CAIRN_TRY(g())}; return v; }", 1),
    ("try", "cairn/a.cc", "Result<P> f() { return h({1, CAIRN_TRY(g())}); }", 1),
    ("try", "cairn/a.cc", "Result<P> f() { return h({{CAIRN_TRY(g())}, {2}}); }", 1),
    ("try", "cairn/a.cc", "Result<P> f() { return std::vector<int>{h(CAIRN_TRY(g()))}; }", 1),
    ("try", "cairn/a.cc", "Result<P> f() { return {1, [&] { return CAIRN_TRY(g()); }()}; }", 0),
    ("try", "cairn/a.cc", "auto f = [](int a) -> Result<int> { CAIRN_TRY(g(a)); return p->q; };", 0),
    ("try", "cairn/a.cc", "namespace cairn {\nstruct S final : T<int> {\n  Result<int> f() const { CAIRN_TRY(g()); return 1; }\n};\n}", 0),
    ("try", "cairn/a.cc", "S::S(int a) : a_{a}, b_(2) { if (a) { CAIRN_TRY(g()); } else { CAIRN_TRY(g()); } }", 0),
    ("try", "cairn/a.cc", "S::S(int a) : a_(1), b_{CAIRN_TRY(g())} {}", 1),
    ("try", "cairn/a.cc", "auto f = [](int a) -> Result<std::pair<int, int>> { return CAIRN_TRY(g(a)); };", 0),
    ("try", "cairn/a.cc", "class S : public A, public B { Result<int> f() override { return CAIRN_TRY(g()); } };", 0),
    ("try", "cairn/a.cc", "switch (x) { case 1: { CAIRN_TRY(g()); } default: { CAIRN_TRY(g()); } }", 0),
    ("try", "cairn/a.cc", "for (int x : {1, 2}) { CAIRN_TRY(g(x)); }", 0),
    ("try", "cairn/a.cc", "// return P{CAIRN_TRY(g())};\nconst char* s = \"{CAIRN_TRY(\"; char c = '{'; int n = 1'000;", 0),
    ("try", "cairn/a.cc", "#define M(x) \\\n  P{CAIRN_TRY(x)}\n", 0),
    ("getenv", "cairn/io/a.cc", 'auto home = std::getenv("HOME");', 1),
    ("getenv", "apps/cli/a.cc", 'auto home = secure_getenv("HOME");', 1),
    ("getenv", "apps/config.cc", 'auto home = std::getenv("HOME");', 0),
    ("getenv", "cairn/kernels/dispatch.cc", 'getenv("CAIRN_KERNELS")', 0),
    ("getenv", "cairn/io/a.cc", "// getenv is read elsewhere", 0),
    ("ownership", "cairn/io/a.h", "std::shared_ptr<int> a = std::make_shared<int>(1);", 2),
    ("ownership", "cairn/io/a.h", "std::unique_ptr<int> a;  // no shared_ptr", 0),
    ("ownership", "tests/io/a_test.cc", "std::shared_ptr<int> a;", 0),
    ("paths", "docs/a.md", "see " + "/ho" + "me/someone/notes", 1),
    ("paths", "tools/a.sh", "cd " + "/wo" + "rk/tree\ncd " + "/ro" + "ot/x", 2),
    ("paths", "docs/a.md", "the frame/wo" + "rk/flow of ~/ho" + "me/x", 0),
]


def self_test():
    failures = 0
    for rule, path, text, expected in SNIPPETS:
        found = list(RULES[rule](path, text))
        if len(found) != expected:
            failures += 1
            print(f"{rule}: {len(found)} findings, expected {expected}, in {path}:\n{text}\n{found}\n")
    print(f"{len(SNIPPETS) - failures} snippets judged rightly, {failures} wrongly")
    return 1 if failures else 0


# --- the program -----------------------------------------------------------------------------------------------------

def tracked_files():
    listed = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
                            check=True, capture_output=True).stdout
    for name in sorted(set(listed.decode().split("\0"))):
        if not name or not os.path.isfile(name) or os.path.islink(name):
            continue
        with open(name, "rb") as file:
            content = file.read()
        if b"\0" not in content[:8192]:
            yield name, content.decode("utf-8", "replace")


def main(arguments):
    if arguments == ["--self-test"]:
        return self_test()
    unknown = [rule for rule in arguments if rule not in RULES]
    if unknown:
        print(__doc__)
        return 2
    os.chdir(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
    file_count, finding_count = 0, 0
    for path, text in tracked_files():
        file_count += 1
        for rule in arguments or RULES:
            for line, message in RULES[rule](path, text):
                finding_count += 1
                print(f"{path}:{line}: {message} [{rule}]")
    print(f"{file_count} files, {finding_count} findings")
    return 1 if finding_count else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
