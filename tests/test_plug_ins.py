"""Parts from outside: the example package through --user-dir and installed, and parts that nobody thought of."""

import os
import re
import shlex
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

import lamina
from lamina import plug_ins
from lamina.checkpoint.format import load_checkpoint
from lamina.cli import main
from lamina.errors import CheckpointError, ConfigError
from lamina.fields import flag
from lamina.parts import Criterion, Fusion, Head, Residual
from lamina.plug_ins import restored
from lamina.registry import register
from tiny import make_data, write_text

ROOT = Path(__file__).parent.parent
EXAMPLE = ROOT / "examples" / "parts"
SMALL = ("--arch tiny --encoder-layers 3 --decoder-layers 2 --encoder-embed-dim 16 --decoder-embed-dim 16 "
         "--encoder-ffn-embed-dim 32 --decoder-ffn-embed-dim 32 --encoder-attention-heads 2 --decoder-attention-heads 2 "
         "--max-tokens 64 --lr 0.01 --warmup-updates 2 --encoder-layerdrop 0.2 --seed 3")
PARTS = "--init-type layer-scale --layer-scale-start 0.2 --fusion mean --criterion focal --focal-gamma 1.5"


@pytest.fixture(scope="module", autouse=True)
def module_leaves_nothing():
    with restored():
        yield


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plug_ins")
    text = write_text(folder / "text", 20)
    write_text(text, 6, seed=1, split="valid")
    return make_data(folder)


def run(command, *paths):
    return main(shlex.split(command.format(*(shlex.quote(str(path)) for path in paths))))


@pytest.fixture(scope="module")
def trained(data):
    """Three updates at once, and one and two more."""
    example = f"--user-dir {EXAMPLE / 'example_parts.py'}"
    for name, updates in (("whole", (6,)), ("resumed", (3, 6))):
        for last in updates:
            command = f"train {{}} {SMALL} {PARTS} {example} --max-update {last} --save-dir {{}}"
            assert run(command, data, data.parent / name) == 0
    return data.parent


# -- the example


def test_resuming_equals_not_stopping(trained):
    whole, resumed = (load_checkpoint(trained / name / "checkpoint_last.pt") for name in ("whole", "resumed"))
    assert all(torch.equal(weight, resumed.weights[name]) for name, weight in whole.weights.items())
    assert whole.config["init-type"] == "layer-scale"
    assert whole.config["layer-scale-start"] == 0.2
    assert whole.config["focal-gamma"] == 1.5
    assert any(name.endswith("attn_residual.add.gamma") for name in whole.weights)


def test_average_prune_generate_score_and_analyze(trained, data, capsys):
    whole, folder = trained / "whole", trained
    example = f"--user-dir {EXAMPLE}"
    assert run(f"average --inputs {{}} {{}} --output {{}} {example}", whole / "checkpoint1.pt", whole / "checkpoint2.pt",
               folder / "mean.pt") == 0
    assert run(f"prune {{}} --encoder-layers-to-keep 0,2 --output {{}} {example}", folder / "mean.pt", folder / "small.pt") == 0
    assert load_checkpoint(folder / "small.pt").config["mean-counts"] == [0, 2, 1]
    capsys.readouterr()
    assert run(f"generate {{}} --path {{}} --gen-subset valid --beam 2 {example}", data, folder / "small.pt") == 0
    assert "Generate valid with beam=2: BLEU4 = " in capsys.readouterr().out
    assert run(f"generate {{}} --path {{}} --gen-subset valid --score-reference {example}", data, folder / "small.pt") == 0
    assert run(f"analyze depth {{}} --out {{}} --sub-layers 2,4 --repeats 1 {example}", folder / "mean.pt", folder / "d") == 0
    assert run(f"analyze fusion {{}} {{}} --out {{}} --metric loss {example}", folder / "mean.pt", data, folder / "f") == 0
    assert "the mean of all encoder layers" in (folder / "f" / "index.html").read_text(encoding="utf-8")


def test_a_pruned_model_computes_what_the_whole_one_does_with_the_other_layers_skipped(trained):
    from lamina.nn.stack import ActiveLayers

    checkpoint = load_checkpoint(trained / "whole" / "checkpoint_last.pt")
    from lamina.pruning.cut import Keep, prune_checkpoint

    small = prune_checkpoint(checkpoint, Keep(encoder=(0, 2))).build_model().eval()
    whole = checkpoint.build_model().eval()
    source, target = torch.randint(4, 40, (2, 7)), torch.randint(4, 40, (2, 5))
    torch.testing.assert_close(small.log_probs(source, target),
                               whole.log_probs(source, target, active=ActiveLayers(encoder=(True, False, True))))


def test_fold_and_export(trained, capsys):
    whole, plain = trained / "whole" / "checkpoint_last.pt", trained / "plain.pt"
    assert run("fold {} --output {}", whole, plain) == 0
    before, after = (load_checkpoint(path).build_model().eval() for path in (whole, plain))
    source, target = torch.randint(4, 40, (2, 7)), torch.randint(4, 40, (2, 5))
    torch.testing.assert_close(after.log_probs(source, target), before.log_probs(source, target), rtol=1e-4, atol=1e-5)
    assert run("export {} --output {}", whole, trained / "folder") == 0
    assert "residuals: layer-scale" in (trained / "folder" / "README.md").read_text(encoding="utf-8")
    for kind, reason in (("fairseq", "no scaled residuals .--init-type layer-scale.. `lamina fold`"),
                         ("ctranslate2", "CTranslate2 has no --fusion mean")):
        assert run(f"export {{}} --format {kind} --output {{}}", whole, trained / kind) == 2
        assert re.search(reason, capsys.readouterr().err)
        assert not (trained / kind).exists()


def test_several_ranks_import_the_same_parts(data, tmp_path):
    """Their processes begin anew: what they are handed names parts that only --user-dir knows."""
    command = [sys.executable, "-m", "lamina", "train", str(data), *shlex.split(SMALL), *shlex.split(PARTS), "--user-dir",
               str(EXAMPLE / "example_parts.py"), "--cpu", "--distributed-world-size", "2", "--max-update", "1", "--save-dir",
               str(tmp_path / "ck")]
    done = subprocess.run(command, capture_output=True, text=True, env=environ(), timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert load_checkpoint(tmp_path / "ck" / "checkpoint_last.pt").config["criterion"] == "focal"


def environ(*paths):
    return {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (*paths, ROOT / "src")))}


def test_without_its_parts_a_checkpoint_is_refused_by_name(trained, data):
    for words in (["generate", str(data), "--path", str(trained / "whole" / "checkpoint_last.pt")],
                  ["prune", str(trained / "whole" / "checkpoint_last.pt"), "--encoder-layers-to-keep", "0,2", "--output",
                   str(trained / "no.pt")]):
        done = subprocess.run([sys.executable, "-m", "lamina", *words], capture_output=True, text=True, env=environ(),
                              check=False)
        assert done.returncode == 2
        assert re.search(r"needs --init-type layer-scale and --fusion mean, which are not registered.*--user-dir", done.stderr)
        assert len(done.stderr.strip().splitlines()) == 1
    assert not (trained / "no.pt").exists()


def test_an_installed_package_needs_no_option(trained, data, tmp_path):
    info = tmp_path / "example_parts-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: example-parts\nVersion: 0.1.0\n")
    named = re.search(r'\[project.entry-points."lamina.parts"\]\n(\w+) = "(\w+)"', (EXAMPLE / "pyproject.toml").read_text())
    (info / "entry_points.txt").write_text(f"[lamina.parts]\n{named[1]} = {named[2]}\n")
    words = ["generate", str(data), "--gen-subset", "valid", "--path", str(trained / "whole" / "checkpoint_last.pt"), "--quiet"]
    done = subprocess.run([sys.executable, "-m", "lamina", *words], capture_output=True, text=True, check=False,
                          env=environ(tmp_path, EXAMPLE))
    assert done.returncode == 0, done.stderr
    assert "BLEU4 = " in done.stdout
    # A broken one costs a line.
    (info / "entry_points.txt").write_text("[lamina.parts]\nbroken = no_such_module\n")
    done = subprocess.run([sys.executable, "-m", "lamina", "train", "--print-config", str(data), "--max-tokens", "8"],
                          capture_output=True, text=True, check=False, env=environ(tmp_path))
    assert done.returncode == 0
    assert done.stderr.count("\n") == 1
    assert "no_such_module could not be loaded" in done.stderr


def test_python_takes_a_folder_too(trained):
    model = lamina.load(trained / "whole" / "checkpoint_last.pt", device="cpu", user_dir=EXAMPLE)
    assert isinstance(model.translate(["a b"])[0].text, str)
    with pytest.raises(ConfigError, match="user_dir nowhere does not exist"):
        lamina.load(trained / "whole" / "checkpoint_last.pt", user_dir="nowhere")


# -- --user-dir itself


def test_a_folder_of_fairseq_plug_ins_is_read_and_never_imported(data, tmp_path, capsys):
    (tmp_path / "radam_fairseq").mkdir()
    (tmp_path / "radam_fairseq" / "__init__.py").write_text("from . import radam\n")
    (tmp_path / "radam_fairseq" / "radam.py").write_text("from fairseq.optim import register_optimizer\nraise SystemExit(7)\n")
    assert run("train {} --max-tokens 64 --print-config --optimizer radam --user-dir {}", data, tmp_path / "radam_fairseq") == 0
    assert "plug-ins for fairseq, which are not imported" in capsys.readouterr().err


def test_a_folder_that_does_not_exist(data, capsys):
    assert run("train {} --max-tokens 64 --print-config --user-dir ../nowhere", data) == 0
    assert "--user-dir ../nowhere does not exist; it has no effect" in capsys.readouterr().err
    assert run("train {} --max-tokens 64 --print-config --user-dir ../nowhere --optimizer ranger", data) == 2
    assert re.search(r"--optimizer is 'ranger'.*\(--user-dir \.\./nowhere does not exist\.\)", capsys.readouterr().err)


def test_a_file_cannot_ask_for_an_import(data, tmp_path, capsys):
    (tmp_path / "recipe.yaml").write_text(f"max-tokens: 64\nuser-dir: {tmp_path / 'evil.py'}\n")
    (tmp_path / "evil.py").write_text("raise SystemExit(7)\n")
    assert run("train {} --config {} --print-config", data, tmp_path / "recipe.yaml") == 0
    assert "must not decide what code is run" in capsys.readouterr().err


def test_recipes_use_named_parts_and_import_none_themselves(tmp_path, capsys):
    text = (ROOT / "recipes" / "fusion_multi30k.yaml").read_text(encoding="utf-8")
    own = tmp_path / "own.yaml"
    own.write_text(text.replace("train:\n", "train:\n  residual: layer-scale\n", 1), encoding="utf-8")
    with restored():
        assert run("recipe run {} --data {} --dry-run --user-dir {}", own, tmp_path, EXAMPLE) == 0
        lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("lamina train")]
        assert lines
        assert all(line.endswith(f"--user-dir={EXAMPLE}") for line in lines)
    own.write_text(text.replace("train:\n", f"train:\n  user-dir: {EXAMPLE}\n", 1), encoding="utf-8")
    assert run("recipe run {} --data {} --dry-run", own, tmp_path) == 2
    assert "a recipe must not decide what code is run" in capsys.readouterr().err


@pytest.mark.parametrize(("text", "reason"), [
    ("import no_such_module\n", "cannot be imported: ModuleNotFoundError: .*bad.py, line 1"),
    ("from lamina import register\n@register.residual('x')\nclass X: pass\n", "does not inherit from lamina.parts.Residual"),
    ("from lamina import register\nfrom lamina.parts import Residual\n@register.residual('x')\nclass X(Residual): pass\n",
     "is no frozen dataclass"),
    ("""
     from dataclasses import dataclass
     from lamina import register
     from lamina.parts import Residual
     @register.residual('x')
     @dataclass(frozen=True, kw_only=True)
     class X(Residual):
         size: int = 3
     """, "its field size has no option"),
    ("""
     from dataclasses import dataclass
     from lamina import register
     from lamina.parts import Fusion
     @register.fusion('x')
     @dataclass(frozen=True, kw_only=True)
     class X(Fusion):
         pass
     """, "lacks build"),
    ("""
     from dataclasses import dataclass
     from lamina import register
     from lamina.parts import Residual
     @register.residual('admin')
     @dataclass(frozen=True, kw_only=True)
     class X(Residual):
         pass
     """, "'admin' .* is registered already"),
])
def test_bad_parts_are_named(text, reason, data, tmp_path, capsys):
    (tmp_path / "bad.py").write_text(textwrap.dedent(text))
    assert run("train {} --max-tokens 64 --print-config --user-dir {}", data, tmp_path / "bad.py") == 2
    assert re.search(reason, capsys.readouterr().err)


def test_an_option_has_one_meaning(data, tmp_path, nothing_stays, capsys):
    (tmp_path / "double.py").write_text(textwrap.dedent("""
        from dataclasses import dataclass
        from lamina import register
        from lamina.fields import flag
        from lamina.parts import Residual
        @register.residual("double")
        @dataclass(frozen=True, kw_only=True)
        class Double(Residual):
            lr: float = flag(1.0, "not the learning rate")
        """))
    assert run("train {} --max-tokens 64 --print-config --user-dir {}", data, tmp_path / "double.py") == 2
    assert "--lr is declared twice" in capsys.readouterr().err


@pytest.fixture
def nothing_stays():
    """What a test registers is gone with it."""
    with restored():
        yield


# -- parts that answer nothing but what they must


@pytest.fixture
def unknown_parts(nothing_stays):
    class Halved(torch.nn.Module):
        def forward(self, x, branch, layer_input):
            return x + 0.5 * branch(x) + 0.25 * layer_input

    @register.residual("unheard-of")
    @dataclass(frozen=True, kw_only=True)
    class UnheardOf(Residual):
        """A residual whose modules are its own."""

        def build(self, place):
            return [Halved() for _ in range(place.num_sub_layers)]

    @register.fusion("unheard-of")
    @dataclass(frozen=True, kw_only=True)
    class UnheardOfFusion(Fusion):
        """The encoder's input beside its output."""

        weight: float = flag(0.3, "of the input", name="unheard-of-weight")

        def build(self, place):
            from lamina.nn.fusion import Memory

            part = self

            class Both(Memory):
                reads_states = frozenset({0})

                def prepare(self, encoder):
                    return encoder.final + part.weight * encoder.states[0]

                def forward(self, prepared, reader):
                    return prepared

            return Both()

    @register.head("unheard-of")
    @dataclass(frozen=True, kw_only=True)
    class UnheardOfHead(Head):
        """Features turned round."""

        def build(self, place, table):
            from lamina.nn.cross_entropy import Term
            from lamina.nn.heads import VocabularyHead

            class Turned(VocabularyHead):
                def __init__(self):
                    super().__init__()
                    self.table = table

                def terms(self, decoder, source=None, layout=None):
                    return [Term(-decoder.final, 1.0)]

            return Turned()

    @register.criterion("unheard-of")
    @dataclass(frozen=True, kw_only=True)
    class UnheardOfLoss(Criterion):
        """Twice the cross entropy."""

        def loss(self, model, batch, active, *, is_compiled):
            sums = register.criterion["cross_entropy"]().loss(model, batch, active, is_compiled=is_compiled)
            return sums._replace(loss=2 * sums.loss)


REFUSED = {
    "residual": {"fold": "--init-type unheard-of cannot be folded into a plain one", "depth": "cannot be looked into",
                 "fairseq": "fairseq has no scaled residuals .--init-type unheard-of", "ctranslate2": "unheard-of"},
    "fusion": {"fold": "nothing to fold", "prune": "--fusion unheard-of cannot be pruned", "fusion": "does not say how much",
               "fairseq": "fairseq has no --fusion unheard-of", "ctranslate2": "CTranslate2 has no --fusion unheard-of"},
    "head": {"fold": "nothing to fold", "prune": "--surfacefusion unheard-of cannot be pruned",
             "fairseq": "fairseq has no --surfacefusion unheard-of", "ctranslate2": "CTranslate2 has no --surfacefusion"},
}
CHOICES = {"residual": "--residual", "fusion": "--fusion", "head": "--head"}


@pytest.mark.parametrize("kind", REFUSED)
def test_every_command_does_the_right_thing_or_refuses_by_name(kind, data, tmp_path, unknown_parts, capsys):
    pytest.importorskip("ctranslate2")
    for last in (2, 3):
        assert run(f"train {{}} {SMALL} {CHOICES[kind]} unheard-of --criterion unheard-of --max-update {last} --save-dir {{}}",
                   data, tmp_path / "ck") == 0
    path = tmp_path / "ck" / "checkpoint_last.pt"
    commands = {
        "average": f"average --inputs {path} {tmp_path / 'ck' / 'checkpoint1.pt'} --output {tmp_path / 'mean.pt'}",
        "prune": f"prune {path} --encoder-layers-to-keep 0,2 --output {tmp_path / 'small.pt'}",
        "fold": f"fold {path} --output {tmp_path / 'plain.pt'}",
        "generate": f"generate {data} --path {path} --gen-subset valid --beam 2 --quiet",
        "score": f"generate {data} --path {path} --gen-subset valid --score-reference --quiet",
        "info": f"info {path}",
        "safetensors": f"export {path} --output {tmp_path / 'folder'}",
        "fairseq": f"export {path} --format fairseq --output {tmp_path / 'fairseq'}",
        "ctranslate2": f"export {path} --format ctranslate2 --output {tmp_path / 'ct2'}",
        "depth": f"analyze depth {path} --out {tmp_path / 'depth'} --sub-layers 2,4 --repeats 1",
        "fusion": f"analyze fusion {path} {data} --out {tmp_path / 'fusion'} --metric loss",
    }
    for name, command in commands.items():
        reason = REFUSED[kind].get(name)
        assert run(command) == (0 if reason is None else 2), (name, capsys.readouterr())
        said = capsys.readouterr().err
        assert reason is None or re.search(reason, said), (name, said)
    for name in REFUSED[kind]:
        written = {"fold": "plain.pt", "prune": "small.pt", "ctranslate2": "ct2"}.get(name, name)
        assert not (tmp_path / written).exists(), name


def test_what_a_search_finds_is_what_the_whole_pass_says(unknown_parts):
    """An unknown residual, fusion and head at once: one step at a time equals all at once."""
    from tiny import tiny_config, tiny_model, tiny_pair

    model = tiny_model(tiny_config(init=register.residual["unheard-of"](), fusion=register.fusion["unheard-of"](),
                                   surface=register.head["unheard-of"]()))
    source, target = tiny_pair(seed=0)
    state = model.start(source)
    steps = [model.step(target[:, place], state) for place in range(target.size(1))]
    torch.testing.assert_close(torch.stack(steps, dim=1), model.log_probs(source, target), rtol=1e-5, atol=1e-5)


def test_an_unknown_part_is_not_folded_as_a_plain_one(unknown_parts):
    from lamina.checkpoint.folding import fold
    from tiny import tiny_config, tiny_model

    for changes in ({"fusion": register.fusion["unheard-of"]()}, {"surface": register.head["unheard-of"]()}):
        config = tiny_config(init=register.residual["admin"](), **changes)
        with pytest.raises(CheckpointError, match=r"unheard-of.* cannot be folded"):
            fold(config, dict(tiny_model(config).named_parameters()))


def test_nothing_is_imported_twice(tmp_path):
    path = tmp_path / "once_only_parts.py"
    path.write_text("counts = globals().setdefault('counts', []); counts.append(1)\n")
    plug_ins.import_paths([path, path], lambda text: None)
    assert sys.modules["once_only_parts"].counts == [1]
