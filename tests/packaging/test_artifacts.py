"""The sdist, the wheel made from it, and both used from outside the checkout: the Lua and the spool must be in them."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

#: What the package can't live without, by its path inside the wheel.
NEEDED = (
    "batchq/py.typed",
    "batchq/lua/claim.lua",
    "batchq/lua/include/fence.lua",
    "batchq/lua/read/stats.lua",
    "batchq/spool/__init__.py",
    "batchq/spool/FORMAT.md",
    "batchq/cli/__init__.py",
)

USE = """
import batchq, batchq.spool, sys
from batchq.lifecycle import VERBS
from batchq.redis.scripts import shipped
from pathlib import Path
assert Path(batchq.__file__).is_relative_to(sys.prefix), batchq.__file__
for verb in VERBS:
    assert shipped(verb).text
app = batchq.App(f"spool:{sys.argv[1]}")
print(app.enqueue("hello", args=[1]).id)
"""


def run(*command: str, cwd: Path) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """dist/ with the sdist and the wheel; `build` makes the wheel from the unpacked sdist, not from the checkout."""
    out = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(ROOT), cwd=out)
    return out


def test_sdist_and_wheel_carry_lua_and_spool(artifacts: Path) -> None:
    """What is linked in the checkout is files in both artifacts."""
    (wheel,) = artifacts.glob("*.whl")
    inside = set(zipfile.ZipFile(wheel).namelist())
    assert not set(NEEDED) - inside
    (sdist,) = artifacts.glob("*.tar.gz")
    with tarfile.open(sdist) as tar:
        regular = {member.name.partition("/")[2] for member in tar.getmembers() if member.isreg()}
    assert not set(NEEDED) - regular
    assert {"README.md", "LICENSE", "tests/conftest.py"} <= regular


def test_every_lua_file_of_the_checkout_is_in_the_wheel(artifacts: Path) -> None:
    """None is lost by an ignore rule or a walk that stops at a link."""
    (wheel,) = artifacts.glob("*.whl")
    inside = set(zipfile.ZipFile(wheel).namelist())
    here = {f"batchq/lua/{path.relative_to(ROOT / 'lua')}" for path in (ROOT / "lua").rglob("*.lua")}
    assert here
    assert here <= inside


def test_wheel_works_from_outside_the_checkout(artifacts: Path, tmp_path: Path) -> None:
    """Installed into a fresh environment that sees this one's dependencies, it enqueues on a spool."""
    (wheel,) = artifacts.glob("*.whl")
    venv = tmp_path / "venv"
    run(sys.executable, "-m", "venv", "--without-pip", str(venv), cwd=tmp_path)
    python = str(venv / "bin" / "python")
    site = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=tmp_path).strip()
    run(sys.executable, "-m", "pip", "install", "--no-deps", "--quiet", "--target", site, str(wheel), cwd=tmp_path)
    # The dependencies of this environment, but not its editable batchq: the .pth files behind such a path do not run.
    ours = run(sys.executable, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=tmp_path).strip()
    Path(site, "deps.pth").write_text(ours + "\n")
    printed = run(python, "-c", USE, str(tmp_path / "spool"), cwd=tmp_path)
    assert len(printed.strip()) == 22


def test_the_checkout_is_what_an_editable_install_imports(tmp_path: Path) -> None:
    """The links resolve: `batchq.spool` and the scripts come from the folders at the top."""
    code = "import batchq.spool, batchq.redis.scripts, pathlib; print(pathlib.Path(batchq.spool.__file__).resolve())"
    where = Path(run(sys.executable, "-c", code, cwd=tmp_path).strip())
    assert where.is_relative_to(ROOT / "spool") or "site-packages" in where.parts
    for link in ("lua", "spool"):
        assert (ROOT / "batchq" / link).is_symlink()
        assert (ROOT / "batchq" / link).readlink() == Path("..") / link
