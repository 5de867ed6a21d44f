#!/usr/bin/env bash
# What a GPU does: the devices that are found, the self-test, a step against PyTorch's, three placements at 48 layers, and
# two replicas on one device.
#
#     benches/gpu/run.sh [BACKEND] [SIZE] [FEATURE]
#
# BACKEND is wgpu (default), vulkan or cuda; SIZE is gpu (12 layers, width 768, 1024 tokens, batch 8; default) or
# tiny, which also a software device finishes; FEATURE is what to build (default BACKEND; wgpu-plain is wgpu without
# fusion and autotune). Needs PyTorch for the comparison, and does the rest without.
set -euo pipefail
cd "$(dirname "$0")/../.."
backend=${1:-wgpu}
size=${2:-gpu}
feature=${3:-$backend}
unitgain=target/release/unitgain

cargo build --release --features "$feature"
"$unitgain" devices

steps=300 layers=48 width=256
if [ "$size" = tiny ]; then
    steps=2 layers=4 width=32
fi
for placement in pre_norm post_norm deep_norm; do
    "$unitgain" train benches/speed.toml --backend "$backend" --out "runs/gpu_$placement" --force --steps "$steps" \
        --set model.n_layers="$layers" --set model.d_model="$width" --set model.placement="$placement" \
        --set eval.tokens=2048
done

# One replica, and two on the same device: the losses differ by rounding.
for devices in "$backend" "$backend,$backend"; do
    "$unitgain" train benches/speed.toml --backend "$devices" --out "runs/gpu_${devices//,/_}" --force --steps 10 \
        --set log.every=1 --set eval.tokens=2048
done
"$unitgain" diff "runs/gpu_$backend" "runs/gpu_${backend}_$backend" || true

if python3 -c 'import torch' 2>/dev/null; then
    device=$(python3 -c 'import torch; print("cuda" if torch.cuda.is_available() else "cpu")')
    python3 benches/against_pytorch.py --backend "$backend" --device "$device" --only "$size" --rounds 3 --compile
else
    "$unitgain" bench benches/speed.toml --backend "$backend"
fi
