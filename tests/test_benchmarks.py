"""benchmarks/: what a run's log is taken for, and that the scripts run."""

import json
import os
import runpy
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "benchmarks"
QUICK = ("--vocabulary", "500", "--pairs", "200", "--max-tokens", "128", "--seconds", "0.1")


@pytest.fixture
def runs(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    import runs

    return runs


def line(updates, *, ups, wpb=100.0, mem_gib=1.0):
    return {"num_updates": updates, "ups": ups, "wpb": wpb, "wps": ups * wpb, "mem_gib": mem_gib}


def read(runs, *rows):
    log = runs.Log()
    for now, row in enumerate(rows, start=1):
        log.read(row, float(now))
    return log


def test_the_first_line_is_warm_up_and_the_others_are_speed(runs):
    log = read(runs, {"note": "[en] dictionary: 500 types"}, {"note": "train: 9 pairs in 2 batches, 3.5 % padding"},
               {"note": "num. model params: 77 (num. trained: 77)"}, line(10, ups=1.0), line(20, ups=5.0),
               line(30, ups=20.0, mem_gib=1.5))
    assert (log.vocabulary, log.padding, log.weights, log.warm_up, log.peak_gib) == (500, 3.5, 77, 4.0, 1.5)
    assert (log.updates, log.tokens, log.seconds) == (20, 2000.0, 2.5)  # not the mean of the two rates


def test_what_is_recorded_later_is_warm_up_too(runs):
    recorded = {"note": "captured updates for batches of this shape, in 3.0 s"}
    log = read(runs, recorded, line(10, ups=1.0), line(20, ups=10.0), recorded, line(30, ups=2.0), line(40, ups=10.0))
    assert log.warm_up == 2.0 + 5.0
    assert (log.updates, log.seconds) == (20, 2.0)


@pytest.mark.parametrize("what", ["--compile is off", "--compile is off for EncoderLayer", "--compile is off for the loss"])
def test_what_hinders_a_run_is_told(runs, capsys, what):
    read(runs, {"note": f"{what}, since it failed: no compiler"})
    assert "no compiler" in capsys.readouterr().err


def test_the_best_round_counts_and_the_spread_shows_the_others(runs):
    case = runs.Case("tiny", "", 128, 500, "fp32", "plain")
    slow, fast = (runs.Log(updates=10, tokens=1000.0, seconds=seconds, warm_up=1.0) for seconds in (1.5, 1.0))
    rounds = runs.Rounds(case, [slow, fast])
    assert rounds.speed() == {"target tokens/s": 1000, "updates/s": 10.0, "ms/update": 100.0, "spread %": pytest.approx(50.0)}


def run_script(monkeypatch, tmp_path, name, *flags):
    monkeypatch.setattr(sys, "argv", [f"{name}.py", *QUICK, "--json", str(tmp_path / "rows.json"), *flags])
    runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")
    return json.loads((tmp_path / "rows.json").read_text())


def test_train_measures_the_command(runs, monkeypatch, tmp_path, capsys):
    found = run_script(monkeypatch, tmp_path, "train", "--technique", "plain,layerdrop-0.5", "--", "--cpu")
    plain, dropped = found["rows"]
    assert (plain["technique"], dropped["technique"]) == ("plain", "layerdrop-0.5")
    assert plain["time, of plain"] == 1.0
    assert dropped["time, of plain"] == pytest.approx(plain["updates/s"] / dropped["updates/s"])
    assert plain["vocabulary"] == 500
    assert min(plain["target tokens/s"], plain["peak GiB"], plain["warm-up s"]) > 0
    assert "layerdrop-0.5 |" in capsys.readouterr().out
    assert "--technique plain,layerdrop-0.5" in found["command"]


def test_a_run_in_this_process_is_where_the_command_would_be(runs, monkeypatch):
    import torch
    from in_process import alone_on_its_device

    from lamina.config.parser import resolve
    from lamina.config.train_options import TrainConfig

    for has_gpu, flags, device in ((True, {}, "cuda"), (True, {"cpu": True}, "cpu"), (False, {}, "cpu")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda has_gpu=has_gpu: has_gpu)
        assert alone_on_its_device(resolve(TrainConfig, {"data": "data", "max-tokens": 64, **flags})).device.type == device


def test_runs_take_turns(runs, monkeypatch, tmp_path, capsys):
    flags = ("--technique", "plain,fusion", "--together", "--rounds", "2", "--", "--cpu")
    found = run_script(monkeypatch, tmp_path, "train", *flags)
    plain, fused = found["rows"]
    assert fused["time, of plain"] == pytest.approx(plain["updates/s"] / fused["updates/s"])
    first, second = headline_values("fusion", found["rows"])
    assert first == plain["rounds"]["target tokens/s"][0] / fused["rounds"]["target tokens/s"][0] != second
    assert len(headline_values("memory", found["rows"][:1])) == len(headline_values("big", found["rows"][:1])) == 2
    assert min(row["spread %"] for row in found["rows"]) >= 0
    told = [line.split(":")[0] for line in capsys.readouterr().err.splitlines() if "target tokens/s" in line]
    assert told == ["tiny 128 tokens fp32 plain", "tiny 128 tokens fp32 fusion"] * 2


def test_a_run_that_ends_before_its_turn_is_told(runs, monkeypatch, tmp_path, capsys):
    flags = ("--technique", "plain", "--together", "--rounds", "2", "--", "--cpu")
    with pytest.raises(SystemExit, match="no run worked"):
        run_script(monkeypatch, tmp_path, "train", *flags, "--max-update", "2")
    with pytest.raises(SystemExit, match="no run worked"):
        run_script(monkeypatch, tmp_path, "train", *flags, "--lr-scheduler", "unheard-of")
    assert "unheard-of" in capsys.readouterr().err


def test_a_stop_while_runs_start_ends_them_cleanly(runs, monkeypatch):
    """The thread that reads a run's log is waited for, though the wait for its first line was interrupted."""
    import turns

    def slowly(*arguments):
        time.sleep(0.3)
        return runs.why_it_ended(*arguments)

    monkeypatch.setattr(turns, "why_it_ended", slowly)
    monkeypatch.setattr(turns, "start", lambda data, case, extra, errors: subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(60)"], stdout=subprocess.PIPE, stderr=errors, text=True))
    is_raised = threading.Event()

    def interrupt():
        """Once as a rule. Python drops what a signal's handler raises while an object is deleted."""
        for _ in range(20):
            if is_raised.wait(0.5):
                return
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    case = runs.Case("tiny", "", 128, 500, "fp32", "plain")
    waiting = turns.Waiting("", case, ())

    def wait():
        try:
            waiting.wait_until_warm()
        finally:
            is_raised.set()

    stop = threading.Thread(target=interrupt)
    stop.start()
    with pytest.raises(KeyboardInterrupt), waiting:
        wait()
    stop.join()
    assert "exit code -9" in str(waiting.error)


def test_what_was_measured_before_a_signal_is_kept(runs, monkeypatch, tmp_path, capsys):
    found = [runs.Log(updates=10, tokens=1000.0, seconds=1.0, warm_up=1.0)]

    def measure(*_):
        if not found:
            os.kill(os.getpid(), signal.SIGTERM)
        return found.pop()

    monkeypatch.setattr(runs, "measure", measure)
    rows = run_script(monkeypatch, tmp_path, "scaling", "--max-tokens", "64,128")["rows"]
    assert [row["max-tokens"] for row in rows] == [64]
    assert "stopped" in capsys.readouterr().err


@pytest.mark.parametrize(("name", "flags", "column", "values"), [
    ("memory", (), "memory, of plain", [1.0, 0.5]),
    ("depth", ("--layers", "6-6,18-18"), "ms a layer", [1000 / 12, 500 / 36]),
    ("scaling", ("--max-tokens", "128,256"), "speed, of 128", [1.0, 2.0]),
])
def test_the_other_scripts_make_their_tables(runs, monkeypatch, tmp_path, name, flags, column, values):
    """From made-up logs: the second case takes half of everything."""
    logs = iter(runs.Log(vocabulary=500, weights=1000, updates=1, tokens=100.0, seconds=share, peak_gib=share, warm_up=1.0)
                for share in (1.0, 0.5))
    monkeypatch.setattr(runs, "measure", lambda *_: next(logs))
    found = run_script(monkeypatch, tmp_path, name, *flags)
    assert [row[column] for row in found["rows"]] == pytest.approx(values)


def test_a_run_that_fails_does_not_take_the_others_with_it(runs, monkeypatch, tmp_path, capsys):
    outcomes = iter(["plain fails", "fusion", "admin", "plain fails again", "fusion", "admin fails"])

    def measure(*_):
        outcome = next(outcomes)
        if "fails" in outcome:
            raise runs.RunError(outcome)
        return runs.Log(updates=1, tokens=100.0, seconds=1.0, warm_up=1.0, weights=1)

    monkeypatch.setattr(runs, "measure", measure)
    fusion, admin = run_script(monkeypatch, tmp_path, "train", "--technique", "plain,fusion,admin", "--rounds", "2")["rows"]
    assert fusion["time, of plain"] == admin["time, of plain"] == ""
    assert fusion["spread %"] == 0.0
    assert "spread %" not in admin
    assert "plain fails again" in capsys.readouterr().err


def test_the_error_of_a_run_is_its_last_line(runs, tmp_path):
    case = runs.Case("tiny", "", 128, 0, "fp32", "plain")
    with pytest.raises(runs.RunError, match="error: "):
        runs.measure(str(tmp_path / "nothing"), case, seconds=1.0)


def test_every_technique_is_one_of_the_command(runs):
    from lamina.config.parser import parse, resolve
    from lamina.config.train_options import TrainConfig

    for technique in runs.TECHNIQUES:
        case = runs.Case("tiny", "3-2", 128, 0, "bf16", technique)
        given, _ = parse("lamina train", TrainConfig, "", ["DATA", *case.flags])
        config = resolve(TrainConfig, given)
        assert (config.model.encoder.num_layers, config.model.decoder.num_layers) == (3, 2)


def test_a_processor_beside_others(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(FOLDER))

    def rows(*flags):
        shared = ("--arch", "tiny", "--rounds", "1", "--json", str(tmp_path / "rows.json"))
        monkeypatch.setattr(sys, "argv", ["cpu.py", *flags, *shared])
        runpy.run_path(str(FOLDER / "cpu.py"), run_name="__main__")
        return json.loads((tmp_path / "rows.json").read_text())["rows"]

    ours, theirs = rows("train", "--max-tokens", "64", "--vocabulary", "200")
    assert ours["weights"] == theirs["weights"]
    assert ours["speed, of torch's"] == pytest.approx(theirs["ms an update"] / ours["ms an update"])
    assert headline_values("cpu-update", [ours, theirs]) == [pytest.approx(ours["speed, of torch's"])]
    pytest.importorskip("ctranslate2")
    found = {row["system"]: row for row in rows("decode", "--sentences", "8", "--batch-size", "4", "--beside", "1")}
    assert list(found) == [f"{system} {kind}" for kind in ("fp32", "int8")
                           for system in ("Lamina", "CTranslate2 intra", "CTranslate2 inter")]
    theirs = min(found[f"CTranslate2 {way} int8"]["seconds"] for way in ("intra", "inter"))
    assert found["Lamina int8"]["best of ours / best of theirs"] == pytest.approx(theirs / found["Lamina int8"]["seconds"])
    assert headline_values("cpu-int8-busy-better", found.values()) == [pytest.approx(theirs / found["Lamina int8"]["seconds"])]
    assert headline_values("cpu-int8-busy-threads", found.values()) == [
        pytest.approx(found["CTranslate2 intra int8"]["seconds"] / found["Lamina int8"]["seconds"])]


def test_runs_take_turns_captured_and_eager(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(FOLDER))
    size = ("--layers", "1", "--width", "16", "--max-tokens", "256", "--lines", "100", "--rounds", "1", "--turn", "1")
    monkeypatch.setattr(sys, "argv", ["captured.py", *size, "--json", str(tmp_path / "rows.json"), "--", "--cpu"])
    runpy.run_path(str(FOLDER / "captured.py"), run_name="__main__")
    rows = json.loads((tmp_path / "rows.json").read_text())["rows"]
    assert [row["case"] for row in rows] == ["bf16", "fp32", "tf32", "recomputed", "adaptive", "sentences", "masked",
                                             "masked-blocks", "masked-fp32", "classes"]
    assert all(row["captured, targets/s"] > 0 and row["eager, targets/s"] > 0 for row in rows)


def test_fusion_beside_plain_models(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(FOLDER))
    names = "att hard,transparent,fine-grained"
    monkeypatch.setattr(sys, "argv", ["fusion.py", "--arch", "tiny", "--vocabulary", "100", "--max-tokens", "64", "--rounds",
                                      "1", "--batch-size", "2", "--models", names, "--json", str(tmp_path / "rows.json")])
    runpy.run_path(str(FOLDER / "fusion.py"), run_name="__main__")
    rows = json.loads((tmp_path / "rows.json").read_text())["rows"]
    assert {row["model"] for row in rows} == {"plain", *names.split(",")}


def test_the_stages_of_a_command(tmp_path):
    folder, flags = tmp_path / "data", ["--arch", "tiny", "--max-tokens", "64", "--lr", "0.001", "--max-update", "3"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path, str(FOLDER)])}
    subprocess.run([sys.executable, "-c", f"import made_up, pathlib; made_up.write_folder(pathlib.Path({str(folder)!r}), 40)"],
                   check=True, env=environment)
    done = subprocess.run([sys.executable, str(FOLDER / "stages.py"), "train", str(folder), *flags, "--cpu",
                           "--disable-validation", "--save-dir", str(tmp_path / "ck"), "--profile", "2:3"],
                          check=True, env=environment, text=True, capture_output=True)
    lines = done.stderr[done.stderr.index(" s to the end of `lamina train"):].splitlines()[1:]
    main_tree = lines[: lines.index("another thread")] if "another thread" in lines else lines
    assert any("torch/__init__.py" in line for line in main_tree)
    for line in lines:
        if line == "another thread":
            continue
        first, last, seconds = map(float, line.split()[:3])
        assert 0.1 <= seconds <= last - first + 0.02
    trace = tmp_path / "ck" / "profile-2-3-rank0.json"
    subprocess.run([sys.executable, str(FOLDER / "kernels.py"), str(trace), "--updates", "2", "--json",
                    str(tmp_path / "rows.json")], check=True, env=environment)
    whole, *rows = json.loads((tmp_path / "rows.json").read_text())["rows"]
    assert whole["calls/update"] > len(rows) == 25
    assert sum(row["%"] for row in rows) <= 100.001


def startup(monkeypatch, tmp_path, *flags):
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.setattr(sys, "argv", ["startup.py", *flags, "--rounds", "1", "--json", str(tmp_path / "rows.json"), "--",
                                      "--cpu"])
    runpy.run_path(str(FOLDER / "startup.py"), run_name="__main__")
    first, *others = json.loads((tmp_path / "rows.json").read_text())["rows"]
    assert first["command"] == "import torch"
    assert all(0 < row["seconds"] <= row["slowest"] for row in (first, *others))
    return others


def test_the_first_update_of_a_folder(monkeypatch, tmp_path):
    rows = startup(monkeypatch, tmp_path, "train", "--lines", "200", "--cold")
    assert [row["caches"] for row in rows] == ["nothing cached", "cached"]
    assert [row["lines"] for row in rows] == [200, 200]
    assert [headline_values(name, rows) for name in ("train-cold", "train-cached")] == [[row["seconds"]] for row in rows]
    assert all(50 < row["peak RSS MiB"] < 4000 for row in rows)


def test_a_translation_from_command_to_exit(monkeypatch, tmp_path):
    (row,) = startup(monkeypatch, tmp_path, "generate", "--sentences", "8")
    assert 0 < row["search s"] < row["seconds"]
    assert headline_values("generate", [row]) == [row["seconds"]]


def test_decoding_cold_and_warm(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(FOLDER))
    flags = ["--sentences", "8", "--batch-size", "4", "--beam", "1,2", "--rounds", "2", "--precision", "cpu", "--cold"]
    monkeypatch.setattr(sys, "argv", ["decode.py", *flags, "--json", str(tmp_path / "rows.json")])
    runpy.run_path(str(FOLDER / "decode.py"), run_name="__main__")
    first, second = json.loads((tmp_path / "rows.json").read_text())["rows"]
    assert [first["beam"], second["beam"]] == [1, 2]
    assert headline_values("search", [first]) == first["rounds"]["cold"]
    assert headline_values("latency-1", [first, second]) == first["rounds"]["sentences/s"]
    assert max(first["rounds"]["sentences/s"]) == first["sentences/s"]


def test_layerdrop_against_none(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(FOLDER))
    size = ["--layers", "1", "--width", "16", "--vocabulary", "100", "--max-tokens", "64", "--pairs", "100", "--turn", "1"]
    monkeypatch.setattr(sys, "argv", ["layerdrop.py", "--device", "cpu", *size, "--rounds", "3", "--json",
                                      str(tmp_path / "rows.json")])
    runpy.run_path(str(FOLDER / "layerdrop.py"), run_name="__main__")
    rows = json.loads((tmp_path / "rows.json").read_text())["rows"]
    assert sorted(headline_values("cpu-layerdrop-0.5", rows))[1] == pytest.approx(rows[2]["ratio"])


# -- figures that versions are compared by

def headline_values(name, rows):
    import headline

    return headline.FIGURES[name].values(list(rows))


@pytest.fixture
def headline(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    import headline

    return headline


def test_headline_figures_are_kept_and_shown(headline, monkeypatch, tmp_path, capsys):
    asked = []

    def run(benchmark, rounds):
        asked.append(benchmark.spelled(rounds))
        rows = [{"beam": 1, "rounds": {"sentences/s": [200.0, 210.0, 190.0]}},
                {"beam": 5, "rounds": {"sentences/s": [1700.25, 180.0, 1500.0]}}]
        return {"machine": "a GPU; torch 2.11", "command": "", "rows": rows}

    monkeypatch.setattr(headline.Benchmark, "run", run)
    rows = tmp_path / "performance.jsonl"
    monkeypatch.setattr(sys, "argv", ["headline.py", "latency-1", "latency-5", "--into", str(rows), "--commit", "abc"])
    headline.main()
    assert asked == ["python benchmarks/decode.py --arch tiny --batch-size 1 --beam 1,5 --sentences 150 --rounds 3"]
    assert "latency-5 | 1,500.00 | 180.00 | 1,700.00 | sentences/s" in capsys.readouterr().out
    first, _second = map(json.loads, rows.read_text().splitlines())
    assert (first["figure"], first["median"], first["lowest"], first["highest"]) == ("latency-1", 200.0, 190.0, 210.0)

    from speed_page import BEGIN, END, speed_page
    (tmp_path / "performance.md").write_text(f"above\n{BEGIN}\nolder\n{END}\nbelow\n")
    monkeypatch.setattr(sys, "argv", ["headline.py", "latency-1", "--into", str(rows), "--commit", "def"])
    headline.main()
    page = speed_page(tmp_path)["performance.md"]
    assert page.startswith("above\n")
    assert page.endswith("below\n")
    assert "older" not in page
    assert "| a GPU; torch 2.11, " in page
    assert "| the same, beam 5 | 1,500 sentences/s | 180 to 1,700 | 3 |" in page
    assert page.index("commit abc") > page.index("commit def")
    assert page.count(headline.FIGURES["latency-1"].what) == 1  # the newest


def test_a_row_that_a_benchmark_does_not_have_is_named(headline):
    with pytest.raises(SystemExit, match=r"0 rows have .*'beam': 5.* and one with rounds of 'sentences/s'"):
        headline.FIGURES["latency-5"].values([{"beam": 1, "rounds": {"sentences/s": [1.0]}}])


def test_unknown_headline_figures_are_refused(headline, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["headline.py", "latency"])
    with pytest.raises(SystemExit) as ended:
        headline.main()
    assert ended.value.code == 2
    assert "latency: choose from gpu, cpu, generate" in capsys.readouterr().err


def test_a_server_under_load(monkeypatch, tmp_path, capsys):
    """In seconds: every answer is compared, every unwelcome client is counted."""
    pytest.importorskip("uvicorn")
    monkeypatch.syspath_prepend(str(FOLDER))
    small = ["--sentences", "16", "--clients", "4", "--beam", "2", "--rounds", "1", "--seconds", "0.5", "--soak-seconds", "2",
             "--disconnecting", "8", "--malformed", "8", "--oversized", "4"]
    monkeypatch.setattr(sys, "argv", ["serve.py", "--arch", "tiny", "--precision", "cpu", *small, "--json",
                                      str(tmp_path / "rows.json")])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(FOLDER / "serve.py"), run_name="__main__")
    said = capsys.readouterr().err
    assert ended.value.code == 0, said
    generate, serve, half, soak = json.loads((tmp_path / "rows.json").read_text())["rows"]
    assert generate["of generate"] == 1.0
    assert serve["sentences/s"] > 0
    assert [row["wrong"] for row in (serve, half, soak)] == [row["failed"] for row in (serve, half, soak)] == [0, 0, 0]
    assert (soak["disconnecting"], soak["malformed"], soak["oversized"]) == (8, 8, 4)
    assert soak["files, after"] <= soak["files, before"] + 8
