#!/bin/sh
# Makes benchmarks/.venv-peers: the libraries that Flatout is compared with, in a Python of their
# own; benchmarks/.venv-sample-factory: Sample Factory, which wants an older Gymnasium; and
# benchmarks/.venv-purejaxrl: what PureJaxRL's programs import (it is no package: give its checkout
# to the benchmarks, --purejaxrl PATH). PyTorch comes first, so that the others do not choose its
# version. Without a GPU, its smaller CPU build is enough:
#   TORCH_INDEX=https://download.pytorch.org/whl/cpu benchmarks/make_peers.sh
set -eu

venv="$(cd "$(dirname "$0")" && pwd)/.venv-peers"
"${PYTHON:-python3}" -m venv "$venv"
pip="$venv/bin/python -m pip"

$pip install --upgrade pip
$pip install torch==2.13.0 ${TORCH_INDEX:+--index-url "$TORCH_INDEX"}
$pip install stable-baselines3==2.9.2 sbx-rl==0.28.0
$pip install ale-py==0.12.1 "gymnasium[mujoco]" mujoco==4.0.0 opencv-python-headless
"$venv/bin/python" -c "import ale_py, cv2, imageio, mujoco, sbx, stable_baselines3, torch
print('ready:', torch.__version__)"

own="$(dirname "$venv")/.venv-sample-factory"
"${PYTHON:-python3}" -m venv "$own"
"$own/bin/python" -m pip install torch==2.13.0 ${TORCH_INDEX:+--index-url "$TORCH_INDEX"}
"$own/bin/python" -m pip install sample-factory==2.1.1
"$own/bin/python" -c "import sample_factory; print('ready: Sample Factory')"

own="$(dirname "$venv")/.venv-purejaxrl"
"${PYTHON:-python3}" -m venv "$own"
"$own/bin/python" -m pip install jax==0.10.2 gymnax==0.0.9 flax distrax optax six
"$own/bin/python" -c "import distrax, flax, gymnax; print('ready: PureJaxRL')"
