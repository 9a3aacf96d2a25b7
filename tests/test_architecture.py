"""The shape of the package: what may import what, and names that lead to one place."""

import ast
import importlib
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "lamina"
# From the ground up; docs/architecture.md shows the same list. A package may be split: what a line says of a module counts
# for it, and the package's own line for the others.
LAYERS = """
    __version__
    errors
    files
    garbage
    bytecode
    console
    provenance
    gpu_driver
    threads
    traits
    registry
    suggestions
    fields
    plug_ins
    parts
    config
    command_line
    text
    packed
    data
    preprocess
    nn
    init
    models
    checkpoint
    pruning.cut
    pruning.on_loading
    interop
    distributed
    cuda_graphs
    decode
    metrics
    tasks
    training
    analysis
    pruning
    api
    serve
    recipes
    demo_corpus
    commands
    cli
    __main__
""".split()


def modules():
    return sorted(SOURCE.rglob("*.py"))


def name_of(path):
    """Below lamina: `nn.stack`; of a package's __init__, the package."""
    return ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")


def layer_of(module):
    """The most specific line that covers a module."""
    covering = [layer for layer in LAYERS if module == layer or module.startswith(f"{layer}.")]
    assert covering, f"{module} stands in no layer: add it to LAYERS and to docs/architecture.md"
    return LAYERS.index(max(covering, key=len))


# Parts name what they build inside their methods alone: those are called from below, where it has been imported long ago.
PARTS = ("parts", "tasks.kinds")


def imports(path):
    """(module below lamina, line) for each import of ours; those for the type checker alone do not count."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    left_out = {id(node) for branch in ast.walk(tree) if isinstance(branch, ast.If)
                and ast.unparse(branch.test) == "TYPE_CHECKING" for node in ast.walk(branch)}
    if name_of(path).startswith(PARTS):
        left_out |= {id(node) for function in ast.walk(tree) if isinstance(function, ast.FunctionDef)
                     for node in ast.walk(function)}
    for node in ast.walk(tree):
        if id(node) in left_out:
            continue
        if isinstance(node, ast.Import):
            yield from ((alias.name.removeprefix("lamina."), node.lineno) for alias in node.names
                        if alias.name.startswith("lamina."))
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "lamina":
            below = (node.module or "").removeprefix("lamina").lstrip(".")
            is_package = (SOURCE / below.replace(".", "/")).is_dir()
            for alias in node.names:
                is_module = is_package and (SOURCE / below.replace(".", "/") / f"{alias.name}.py").exists()
                yield (f"{below}.{alias.name}".lstrip(".") if is_module or not below else below), node.lineno


@pytest.mark.parametrize("path", [path for path in modules() if path != SOURCE / "__init__.py"], ids=name_of)
def test_imports_go_up_only(path):
    own = layer_of(name_of(path))
    for module, line in imports(path):
        assert layer_of(module) <= own, (f"{name_of(path)}, line {line}, imports {module}, which stands below it: LAYERS in "
                                         "this test says what may import what")


def test_the_documented_layers_are_these():
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    shown = re.findall(r"^  ([\w.]+?)(?:\.py|/)? ", page, flags=re.MULTILINE)
    named = [layer for layer in LAYERS if not layer.startswith("__")]
    assert [name for name in shown if name in named] == named


def test_the_documented_steps_exist():
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    named = re.findall(r"`((?:\w+\.)+\w+)`", page.partition("## From a sentence to a translation")[2])
    assert len(named) > 20
    for name in named:
        module, _, own = name.rpartition(".")
        assert hasattr(importlib.import_module(f"lamina.{module}"), own), name


def test_module_names_are_unique():
    """So that "go to file" is no quiz."""
    names = Counter(path.name for path in modules() if path.name != "__init__.py")
    assert not [name for name, number in names.items() if number > 1]


def test_blocks_do_not_know_configurations():
    for path in (SOURCE / "nn").glob("*.py"):
        assert not [module for module, _ in imports(path) if module.partition(".")[0] in ("config", "text", "data")], path.name


def test_nothing_asks_for_the_vendor_or_the_load_of_a_cpu():
    for path in modules():
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"cpuinfo|/proc/pressure|getloadavg|AuthenticAMD|GenuineIntel", text), name_of(path)


def test_tests_stand_where_their_modules_do():
    """A folder of tests with a package's name tests its modules; laws and whole commands have folders of their own."""
    packages = {path.name for path in SOURCE.iterdir() if (path / "__init__.py").exists()} - {"commands", "recipes", "interop"}
    for path in (ROOT / "tests").glob("*/test_*.py"):
        if path.parent.name not in packages:
            continue
        stem, package = path.stem.removeprefix("test_"), SOURCE / path.parent.name
        names = [module.stem for module in package.glob("*.py")]
        assert any(name.startswith(stem) or stem.startswith(name) for name in names), f"tests/{path.parent.name}/{path.name}"


def test_help_does_not_wait_for_torch():
    code = ("import sys; from lamina.cli import main; main(['train', '--help']); "
            "assert not {'torch', 'numpy'} & set(sys.modules)")
    environ = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL, env=environ)
