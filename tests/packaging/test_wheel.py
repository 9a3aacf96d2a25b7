"""What people install: a wheel, in an environment that does not see the clone."""

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

pytestmark = pytest.mark.extra

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The folder of commands of an environment that shares the packages installed here, torch among them, but for Lamina."""
    folder = tmp_path_factory.mktemp("installed")
    clone = folder / "clone"
    shutil.copytree(ROOT, clone, ignore=shutil.ignore_patterns(".*", "build", "dist", "tests", "carry", "*.egg-info"))
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(clone)]
    subprocess.run(build, check=True)
    venv.create(folder / "env", with_pip=True)
    paths = {"base": str(folder / "env"), "platbase": str(folder / "env")}
    site = Path(sysconfig.get_path("purelib", "venv", vars=paths))
    shared = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    (site / "shared.pth").write_text("\n".join(shared) + "\n")
    (wheel,) = folder.glob("lamina-*.whl")
    bin_folder = Path(sysconfig.get_path("scripts", "venv", vars=paths))
    subprocess.run([str(bin_folder / "python"), "-m", "pip", "install", "--quiet", "--no-deps", str(wheel)], check=True)
    shutil.rmtree(clone)
    return bin_folder


def run(installed, *words, cwd):
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([str(installed / words[0]), *words[1:]], cwd=cwd, env=environ, capture_output=True, text=True,
                          check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_an_installed_lamina_does_without_the_clone(installed, tmp_path):
    where = run(installed, "python", "-c", "import lamina; print(lamina.__file__)", cwd=tmp_path)
    assert str(installed.parent) in where
    assert "fusion_multi30k" in run(installed, "lamina", "recipe", "list", cwd=tmp_path)
    assert "sf-gate: 0.8" in run(installed, "lamina", "train", "DATA", "--config", "gec", "--print-config", cwd=tmp_path)
    package = run(installed, "python", "-c", "import lamina; print(lamina.__path__[0])", cwd=tmp_path).strip()
    assert Path(package, "py.typed").exists()
    run(installed, "lamina", "demo", "--folder", "demo", "--train-pairs", "400", "--max-update", "3", "--samples", "1",
        cwd=tmp_path)
    run(installed, "lamina", "train", "demo/data", "--arch", "tiny", "--share-all-embeddings", "--max-tokens", "512",
        "--max-update", "2", "--save-dir", "own", cwd=tmp_path)
    shown = run(installed, "lamina", "generate", "demo/data", "--path", "own/checkpoint_last.pt", "--max-len-b", "5", "--quiet",
                cwd=tmp_path)
    assert "BLEU4 = " in shown
    code = "import lamina; print(type(lamina.load('own/checkpoint_last.pt').translate('Our son speaks Latvian.')).__name__)"
    assert "Translation" in run(installed, "python", "-c", code, cwd=tmp_path)
