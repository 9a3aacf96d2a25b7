"""Writes the pages of docs/ that repeat what the configuration classes say: `python tools/write_docs.py docs`."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import compatibility
import write_option_types
from lamina.command_line import COMMANDS, load
from lamina.config.fairseq_options import FAIRSEQ_OPTIONS, REFUSED_VALUES, Retired, retired_for
from lamina.config.packaged_recipes import all_corpora
from lamina.fields import Leaf, default_text, flatten, leaves, unique_leaves
from lamina.recipes.origins import origin
from lamina.recipes.recipe_file import find_dataset
from lamina.registry import register
from result_pages import figure_pages

NOTE = "<!-- Written by `make docs` from the configuration classes: change those, or tools/write_docs.py. -->"

OPTIONS_INTRODUCTION = """\
# Options

A page for each command lists its options by topic. `lamina COMMAND --help-all` shows the same.

- An option may be written with `-` or `_` inside its name.
- A switch that is on is turned off with `--no-NAME`, and one that is off is turned on with `--NAME`.
- A list is written `1,2,4`, a pair also `'(0.9, 0.98)'`.
- An option that is given, is not at its default and has no effect in the chosen combination is an error.
- For `lamina train`, `--arch` gives the model's defaults, a recipe (`--config`, see
  [formats](formats.md#recipe)) overrides them, and flags override both. `--print-config` shows the result."""

MIGRATING_INTRODUCTION = """\
# Coming from fairseq

`python preprocess.py` or `fairseq-preprocess` becomes `lamina preprocess`, `python train.py` or `fairseq-train` becomes
`lamina train`. The rest of the line stays; `average_checkpoints.py` becomes `lamina average`, and
`eval_lm.py` or `fairseq-eval-lm` becomes `lamina eval-lm`.

An option of fairseq, from 0.9 to main, or of the surface-fusion and Admin forks, either does what it did, under its name or
an alias; or it is *retired*: accepted, with one line that says why it has no effect; or it is *refused*, because the run
would not be the one you asked for. The tables below list them all, and a test walks through them. Any other option is an
error that names the nearest one.

## What carries over

- **Data folders**, both ways: fairseq's memory-mapped folders (`--dataset-impl mmap`, its default) train as they are, and
  what `lamina preprocess` writes has the same names and bytes. Lamina adds `manifest.json`, and `subwords.json` with the
  subword models ([formats](formats.md)). Folders of fairseq's other layouts must be made again.
- **Dictionaries** (`dict.LANG.txt`) and subword-nmt codes (`--bpe-codes`), in fairseq's order and format.
- **Checkpoints** of fairseq 0.9 to main and of the surface-fusion and Admin forks: `--path`, `--restore-file`,
  `--finetune-from-model` and `lamina.load` take them as they are, and `lamina convert` makes them native
  ([interoperability](interop.md)). Log-probabilities agree with fairseq's to 2e-6.

## What differs on purpose

Defaults:

| option | fairseq 0.9 | Lamina |
| --- | --- | --- |
| `--arch` | `fconv` | `transformer` |
| `--optimizer`, `--lr-scheduler`, `--lr` | `nag`, `fixed`, 0.25 | `adam`, `inverse_sqrt`, 0.0005 |
| `--log-interval` | 1000 | 100 |
| `--init-token`, `--separator-token` | none | 0, 2; -1 means none |
| `--workers` of preprocess | 1 | one per core |

`--criterion` is `cross_entropy` by default, as in fairseq: label smoothing needs `--criterion
label_smoothed_cross_entropy --label-smoothing 0.1`.

Training:

- **Label smoothing** gives each of the V symbols eps/V, as fairseq 0.9 and torch do. Later fairseq gives eps/(V-1); for
  its loss, pass eps·V/(V-1).
- **`--min-lr`** is the floor of `linear` and `poly`. Under the other schedules, training stops once the rate has *fallen*
  to it; warm-up, which begins below it, stops nothing. It is looked at after each update. `--stop-min-lr` stops under any
  schedule.
- **`inverse_sqrt` with `--warmup-updates 0`** decays from the first update on; fairseq's rate stays 0. `linear` ends at 0
  or at `--min-lr`; that of `radam_fairseq` continues below zero.
- **`--optimizer radam`** follows its authors' code and not their paper: no step while rho < 5, where the paper takes
  momentum steps and draws the line at 4.
- **`--optimizer nag`** keeps its velocity in units of the gradient. The rule is fairseq's, without its rescaling when the
  rate changes.
- **Batches mix sentences of all lengths**, on GPUs and CPUs, and have no padding: pairs lie one after the other
  in a row of up to `--max-tokens` of each side, so that an epoch has fewer and fuller updates than fairseq's. fairseq sorts
  by length, pads, and shuffles whole batches, as `--batch-order length` does: an update sees sentences of one length, and
  Post-LN learns far more slowly ([why](performance.md#batches)). Labelled sentences, and blocks of text that differ in
  length, are mixed too.
- **Data order** follows from `--seed` and the epoch alone, but it is not fairseq's order. The last, smaller batch of an
  epoch is used like the others.
- **Too long pairs** are left out of training, and a line says how many and which. Too long validation pairs stop the run,
  unless `--skip-invalid-size-inputs-valid-test` lets it continue without them, naming them too.
- **`--fp16` without a GPU** is a notice, and float32. With one, weights are float16 with float32 masters;
  `--memory-efficient-fp16` means the same as `--fp16` here. `--bf16` needs no loss scale.
- **On a GPU, bfloat16 and packed batches are the default.** A packed batch is a mixed one whose rows have all the same
  shape. `--no-pack --fp32 --batch-order length` makes batches as fairseq does, and computes as it does without `--fp16`
  ([performance](performance.md)).
- **A gradient that is NaN or infinite** is skipped with a warning. Ten in a row stop a float32 or bfloat16 run, and a loss
  scale below `--min-loss-scale` a float16 run. The message names the update and the parameter, and the exit code is 2.
- **Many GPUs**: as in fairseq, `lamina train` uses all that it sees, and torchrun and Slurm span machines
  ([how](multi-gpu.md)). The first lines of a run say what its effective batch is.
- **`--encoder-layers-to-keep 3`** keeps layer 3 alone, as in fairseq, also in `--model-overrides`; three layers, evenly
  spaced, are `even:3`. Pruning one side leaves the other whole, and what a pruned model saves loads with and without the
  list ([LayerDrop](layerdrop.md#prune-on-demand)).
- **LayerDrop** draws for each sentence which layers it leaves out. fairseq draws for each batch, as `--layerdrop-draws batch`
  does ([LayerDrop](layerdrop.md#who-leaves-out-a-layer)).
- **`--num-workers`** counts threads; 0 prepares batches in the main thread.
- **Admin** (`--init-type`, of Transformer-Clinic) runs in one command: `admin` profiles, then trains. The original's two
  steps run as they are. `profile.ratio.init` lies in `--save-dir`, and as in the fork in the current folder, so that all
  seeds of a loop share it; no later command needs it. `adaptive-profiling` and `adaptive` count padding as the fork does,
  `admin` leaves it out ([Admin](admin.md)).

- **Masks** never cover `<s>` and `</s>`, and a random word is never `<mask>` ([masked language models](masked-lm.md)).

The start, of fairseq 0.9 and since. Options that are left out take today's defaults in a new run; a resumed run keeps the
start and the order of batches that its checkpoint was trained with (before there was `--batch-order`: sorted where padded).

| weights | how they begin |
| --- | --- |
| feed-forward blocks | 0.9: Xavier uniform, biases zero (`--ffn-init xavier`); 0.10 to main, and Lamina: torch's own, |
| | weights and biases uniform in ±1/sqrt(fan-in) (`torch`) |
| queries, keys, values | Xavier uniform, gain 1/sqrt(2) where all have one width; biases uniform in ±1/sqrt(fan-in) |
| attention's output | Xavier uniform, bias zero |
| embeddings, learned positions, output | normal, 1/sqrt(width); zero where padding is looked up |
| adaptive input | tables as embeddings, projections Xavier uniform |
| adaptive softmax of its own | Xavier uniform; frequent words and the bands' entries as one matrix |
| masked language models | all matrices normal, 0.02, and biases zero; the matrix of `--untie-weights-roberta` as torch's own |
| a sentence head | fairseq: torch's own; Lamina: normal, 0.02, and zero, as BERT's |

All rows but the first are the same in 0.9 and main. So is `transformer_lm`: Pre-LN with a norm after the last layer, which
the `baevski` presets leave out.

At a width of 512 with 1,024 inside, the product of both feed-forward matrices is 2.8 times as large in 0.9 as since. The
forks of SurfaceFusion and Admin, and the LayerDrop paper, are of 0.9: their recipes say `ffn-init: xavier`. DeepNet sets
these weights itself, and BERT's rule all weights of masked models: `--ffn-init` is refused there.

Language models ([their page](language-models.md)):

- **`adaptive_loss`** counts every word. fairseq leaves out the second word of each band of rarer words, which it takes for
  padding there, and gives it a zero vector at the input.
- **Blocks do not run from one file into the next** (train, train1, ..).
- **`eval-lm`** reads as many tokens at once as the model takes unless `--tokens-per-sample` says otherwise, and prints its
  loss in bits, as later fairseq does. By word, one that a block cuts in two counts once, not twice.
- **A prompt's length is no part of `--max-len-b` and `--min-len`** in `interactive`.

Text:

- **A line ends at `\\n`** and nowhere else. A `\\r` is white space; fairseq ends a line there too.
- **Raw text** may be given: `--subword sentencepiece|bpe` learns and applies subwords, `--tokenizer moses` tokenizes
  first, escaping nothing. Data folder and checkpoints carry the models.
- **Word alignments** (`--alignfile`, `--align-suffix`, `--load-alignments`) are refused.

## Resuming

`lamina train` resumes from `checkpoint_last.pt` in `--save-dir` if there is one, on a CPU with the same bits as a run that
never stopped. `--restore-file NAME` looks in `--save-dir`, then for NAME as a path; a file that does not exist means a
fresh start, as in fairseq's scripts, with a warning at the beginning and at the end. All options are those of the new
command line: what it leaves out takes its default, not the checkpoint's value.

| option | what it does on resuming |
| --- | --- |
| `--reset-optimizer` | weights and epoch stay; optimizer, loss scale, count of updates, best score and patience start over |
| another metric, criterion or validation set | the best score and patience start over, and a line says so |
| `--reset-lr-scheduler` | the schedule begins at this update |
| `--reset-dataloader` | the data begins at epoch 1 |
| `--reset-meters` | best score, patience and training time are forgotten |
| `--restore-file FILE` of another task | its weights alone: `sentence_prediction` begins from `masked_lm` |
| `--finetune-from-model FILE` | only without a checkpoint to resume: its weights alone; not beside `--restore-file` |

## A recipe instead of a long line

`--config recipe.yaml` reads flat `flag: value` lines, or the `train` section of a [recipe](recipes.md); flags on the command
line win over it. `lamina train ...
--print-config` prints the resolved configuration in that form and stops, so any line can be turned into a recipe. A key
is an option's name or alias, with `-` or `_`, and `no-NAME` for a switch. Retired options have no effect there either."""

COMPATIBILITY_INTRODUCTION = """\
# What goes with what

Every task with every technique through every step, tried by a test on small models: *yes* means that the step works, *no*
that a command says why not and writes nothing. The flags behind the names: SurfaceFusion is `--surfacefusion att`,
transparent is `--transparent-attention` ([layer fusion](fusion.md)); Pre-LN is `--encoder-normalize-before` and its twin
for the decoder, Admin is `--init-type admin` on Post-LN ([Admin](admin.md)); LayerDrop is `--encoder-layerdrop` and its
twin ([LayerDrop](layerdrop.md)). Other ways in and out are on the page about [interoperability](interop.md). The steps:"""

STATUS_LEGEND = """\
*same*: the same name. *alias*: another spelling of the option named. *retired*: accepted, has no effect. *refused*: an
error. Defaults are Lamina's."""

# Options of other tasks and models, of the forks and of releases after 0.9 share a row where they share a fate.
OTHERS = "Of fairseq's other tasks and models, of the forks and of later releases:"


def pages() -> dict[str, str]:
    """File name -> content."""
    return {"options.md": options_page(), "corpora.md": corpora_page(), "migrating.md": migrating_page(),
            "compatibility.md": compatibility_page(), **{command_file(name): command_page(name) for name in COMMANDS}}


# -- compatibility.md


def compatibility_page() -> str:
    steps = "\n".join(f"- **{step}**: {meaning}." for step, meaning in compatibility.STEPS.items())
    blocks = ["<!-- Written by `make docs` from tools/compatibility.py, which a test goes through cell by cell. -->",
              COMPATIBILITY_INTRODUCTION, steps]
    for task in compatibility.STACKS:
        remarks: dict[str, int] = {}  # each with its number
        rows: list[tuple[str, ...]] = []
        for cell in (cell for cell in compatibility.cells() if cell.task == task):
            refusals = [compatibility.refusal(cell, step) for step in compatibility.STEPS]
            marks = ["yes" if refusal is None else f"no ({remarks.setdefault(refusal.remark, len(remarks) + 1)})"
                     for refusal in refusals]
            rows.append((cell.fusion, cell.residual, cell.layer_drop, *marks) if refusals[0] is None
                        else (cell.fusion, "any", "any", marks[0], *["" for _ in marks[1:]]))
        blocks += [f"## {task}", _table(("fusion", "layers", "LayerDrop", *compatibility.STEPS), dict.fromkeys(rows))]
        blocks.append("\n".join(f"{number}. {_sentence(remark)}" for remark, number in remarks.items()))
    return "\n\n".join(blocks) + "\n"


# -- options.md


def command_file(name: str) -> str:
    return f"reference/{name.replace(' ', '-')}.md"


def options_page() -> str:
    rows = [(f"[`lamina {name}`]({command_file(name)})", _sentence(command.help)) for name, command in COMMANDS.items()]
    commands = _table(("command", "what it does"), rows)
    return "\n\n".join([NOTE, OPTIONS_INTRODUCTION, commands, "## Presets of --arch", _presets_table()]) + "\n"


CORPORA_INTRODUCTION = """\
# Corpora of the recipes

Where the files come from that `lamina recipe run NAME --data FOLDER` reads. Nothing is downloaded for you. Files lie in
`FOLDER` under these names, packed or unpacked. `build.py` is [recipes/data/build.py](../recipes/data/build.py): it downloads
public files, compares each with a checksum that was verified here, and builds the corpus byte for byte as ours was:

```sh
python recipes/data/build.py multi30k_bpe dialogsum --into downloads
```

The addresses of archives were not tried, since this project is tested without a network, and *not verified here* stands where
no checksum could be compared. `lamina recipe prepare` prints the SHA-256 of each archive, and `corpus.json` keeps it.

*Not published* means that only we have the file. Scores on such a corpus compare between our runs alone."""


def corpora_page() -> str:
    """Each corpus of recipes/data with the files that it needs."""
    blocks = [NOTE, CORPORA_INTRODUCTION]
    for name in all_corpora():
        dataset = find_dataset(name)
        rows = []
        for names in dataset.files:
            own = origin(dataset.downloads, names)
            assert own is not None, f"recipes/data/{name}.yaml does not say where {names} comes from"
            how = f"`build.py {own.build}`" if own.build else own.own or _linked(own.url) or "not published"
            remarks = [remark for remark in (own.checksum(), _linked(own.note)) if remark]
            rows.append((f"`{names.replace('|', '` or `')}`", how, " ".join(map(_sentence, remarks))))
        blocks += [f"## {name}", _sentence(dataset.about), _table(("file", "from", "checksum and notes"), rows)]
    return "\n\n".join(blocks) + "\n"


def _linked(text: str) -> str:
    """Addresses are long: the name of the host stands for them."""
    return re.sub(r"https?://\S+", lambda match: f"[{urlsplit(match[0]).hostname}]({match[0]})", text)


def command_page(name: str) -> str:
    blocks = [NOTE, f"# lamina {name}", _sentence(COMMANDS[name].help)]
    topics = _topics(config_class(name))
    for topic, (remark, rows) in topics.items():
        if len(topics) > 1:
            blocks.append(f"## {topic}")
        if remark:
            blocks.append(_sentence(remark))
        table = [_option_row(config_class(name), leaf) for leaf in rows]
        columns = 4 if any(row[3] for row in table) else 3  # few options are of a paper
        blocks.append(_table(("option", "default", "meaning", "paper")[:columns], [row[:columns] for row in table]))
    return "\n\n".join(blocks) + "\n"


def config_class(command: str) -> type:
    cls = load(COMMANDS[command].config)
    assert isinstance(cls, type)
    return cls


def _topics(cls: type) -> dict[str, tuple[str, list[Leaf]]]:
    """Leaves by topic, with the remark that their dataclass makes on it; the parts of a variant are one topic."""
    topics: dict[str, tuple[str, list[Leaf]]] = {}
    for leaf in unique_leaves(cls):
        match = re.match(r"([^:(]+?)(?:: | \(|$)(.*?)\)?$", leaf.group)
        assert match, leaf.group
        topic, remark = match.groups()
        # What distinguishes one variant from the next is said in each row.
        topics.setdefault(topic, ("" if leaf.chosen_by else remark, []))[1].append(leaf)
    return topics


def _option_row(cls: type, leaf: Leaf) -> tuple[str, ...]:
    names = [leaf.spelling, *(_spelled(alias) for alias in leaf.info.aliases)]
    if leaf.info.positional:
        names = [leaf.name.upper()]
    elif leaf.is_bool:
        names = [name.replace("--", "--[no-]", 1) for name in names]
    remarks = []
    if leaf.info.choices:
        number = "One or several" if isinstance(leaf.default, tuple) else "One"
        remarks.append(f"{number} of {', '.join(f'`{choice}`' for choice in leaf.info.choices)}.")
    if owners := _owners(cls, leaf.name):
        remarks.append(f"For {'; '.join(owners)}.")
    return (", ".join(f"`{name}`" for name in names), default_text(cls, leaf),
            " ".join([_sentence(leaf.info.help), *remarks]), leaf.info.paper)


def _spelled(name: str) -> str:
    return name if name.startswith("-") else f"--{name}"


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + "."


def _homes(cls: type, name: str) -> list[Leaf]:
    return [leaf for leaf in leaves(cls) if leaf.name == name]


def _owners(cls: type, name: str) -> list[str]:
    """`--optimizer adam, radam`: the choices without which the option is not there."""
    kinds: dict[str, list[str]] = {}
    for leaf in _homes(cls, name):
        for task in leaf.tasks:
            kinds.setdefault("task", []).append(task)
        for selector, kind in leaf.chosen_by:
            kinds.setdefault(selector, []).append(kind)
    return [f"`--{selector}` {', '.join(dict.fromkeys(chosen))}" for selector, chosen in kinds.items()]


PRESET_COLUMNS = ("layers", "embed-dim", "ffn-embed-dim", "attention-heads", "normalize-before")


def _presets_table() -> str:
    rows = []
    for name, preset in register.arch.items():
        flat, tasks = flatten(preset()), register.arch.tasks_of(name)
        stacks = [_shown_once(flat[f"{stack}-{column}"] for stack in _stacks(tasks[0])) for column in PRESET_COLUMNS]
        rows.append((f"`{name}`", ", ".join(tasks), *stacks, *(str(flat[drop]) for drop in (
            "dropout", "attention-dropout", "activation-dropout"))))
    return _table(("arch", "task", "layers", "width", "feed-forward", "heads", "Pre-LN", "dropout", "attention", "activation"),
                  rows)


def _stacks(task: str) -> tuple[str, ...]:
    """Which of the stacks a task's models have."""
    return register.task[task].stacks


def _shown_once(values: Iterable[Any]) -> str:
    shown = [{True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value) for value in values]
    return " / ".join(dict.fromkeys(shown))


# -- migrating.md


def migrating_page() -> str:
    blocks = [NOTE, MIGRATING_INTRODUCTION]
    for command, names in sorted(FAIRSEQ_OPTIONS.items()):
        head = ("fairseq", "status", "in Lamina")
        rows = [migration_row(command, name) for name in sorted(names, key=lambda name: name.lstrip("-"))]
        blocks += [f"## Options of {command}", STATUS_LEGEND, _table(head, rows)]
        others: dict[tuple[str, str], list[str]] = {}
        for option in sorted(retired_for(command), key=lambda option: option.name):
            if option.name not in names:
                spelling, status, text = migration_row(command, option.name)
                others.setdefault((status, text), []).append(spelling)
        if others:
            blocks += [OTHERS, _table(head, [(", ".join(spellings), *fate) for fate, spellings in others.items()])]
        values = [(f"`--{name} {value}`", "refused", _sentence(reason)) for (name, value), reason in REFUSED_VALUES.items()
                  if any(leaf.name == name for leaf in unique_leaves(config_class(command)))]
        if values:
            blocks += ["Values:", _table(head, values)]
        if new := new_options(command):
            blocks.append(f"New in `lamina {command}`: {', '.join(f'`{name}`' for name in new)}.")
    return "\n\n".join(blocks) + "\n"


def migration_row(command: str, name: str) -> tuple[str, str, str]:
    """What became of one option of fairseq."""
    spelling = _spelled(name)
    retired: dict[str, Retired] = {option.name: option for option in retired_for(command)}
    if name in retired:
        option = retired[name]
        return f"`{spelling}`", "refused" if option.is_refused else "retired", _sentence(option.reason)
    cls = config_class(command)
    for leaf in unique_leaves(cls):
        if name == leaf.name:
            return f"`{spelling}`", "same", _meaning(cls, leaf)
        if leaf.is_bool and name in (f"no-{leaf.name}", *leaf.info.off_aliases):
            return f"`{spelling}`", "same", f"Turns off `--{leaf.name}`: {leaf.info.help}."
        if name in leaf.info.aliases:
            return f"`{spelling}`", "alias", f"`--{leaf.name}`"
    raise AssertionError(f"{spelling} of {command} is neither known nor retired")


def _meaning(cls: type, leaf: Leaf) -> str:
    _, default, meaning, _ = _option_row(cls, leaf)
    return f"{meaning} Default: {default}." if default else meaning


def new_options(command: str) -> list[str]:
    """Options that fairseq 0.9 lacks, under any of their names."""
    known = set(FAIRSEQ_OPTIONS[command])
    return sorted(leaf.spelling for leaf in unique_leaves(config_class(command)) if not leaf.info.positional
                  and not known & {leaf.name, f"no-{leaf.name}", *leaf.info.aliases})


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(_cell, line)) + " |" for line in lines)


def _cell(text: str) -> str:
    # A bare <unk> or </s> would be taken for an HTML tag and vanish.
    return re.sub(r"(?<!`)<(/?\w+)>", r"`<\1>`", text).replace("|", "\\|")


def write_pages(folder: Path) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    written = pages() | figure_pages(folder)
    for name, text in written.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(text.encode("utf-8"))
    return [folder / name for name in written]


if __name__ == "__main__":
    docs = Path(sys.argv[1] if len(sys.argv) > 1 else "docs")
    for path in write_pages(docs):
        print(f"| wrote {path}")
    write_option_types.PATH.write_text(write_option_types.text(), encoding="utf-8")
    print(f"| wrote {write_option_types.PATH.name}")
