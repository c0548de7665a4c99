"""scripts/profile_step.py: kernels fall into groups by name, and a profile of a tiny step adds up."""

import json
from pathlib import Path

import pytest
from scripts.benchmarks_page import _profiles
from scripts.profile_step import REST, group_of, grouped, main

TINY = ("network.backbone=test_resnet", "network.width=16", "network.options={}", "training.batch=2")


@pytest.mark.parametrize(
    ("name", "group"),
    [
        ("sm90_xmma_fprop_implicit_gemm_bf16bf16_nhwc", "convolutions, forward"),
        ("sm90_xmma_dgrad_implicit_gemm_bf16bf16", "convolutions, backward to maps"),
        ("sm80_xmma_wgrad_implicit_gemm_indexed", "convolutions, backward to weights"),
        ("nvjet_sm90_tst_64x128_64x8_2x1_v_bz_splitK_NTN", "matrix products"),
        ("triton_poi_fused__native_batch_norm_legit_no_training_add_relu_3", "norms of teachers"),
        ("triton_red_fused__native_batch_norm_legit_functional_native_batch_norm_backward_5", None),
        ("triton_red_fused__native_batch_norm_legit_functional_1", "norms and activations, forward"),
        ("gradient_sums", None),
        ("settle_gradients", None),
        ("apply_gradients", None),
        ("moment_sums", "norms and activations, forward"),
        ("settle_moments", "norms and activations, forward"),
        ("apply_moments", "norms and activations, forward"),
        ("void at::native::multi_tensor_apply_kernel<TensorListMetadata<3> >", "optimizers and averages"),
        ("triton_poi_fused_8", "compiled kernels, joined from several"),
        ("triton_poi_fused__to_copy_0", "copies and casts"),
        ("void cudnn::engines_precompiled::nchwToNhwcKernel<__nv_bfloat16, __nv_bfloat16>", "changes of layout"),
        ("void at::native::(anonymous namespace)::upsample_bilinear2d_backward_out_frame", "up-sampling"),
        ("Memcpy DtoD (Device -> Device)", "copies and casts"),
        ("void at::native::vectorized_elementwise_kernel<2, BitwiseXorFunctor<long> >", REST),
    ],
)
def test_kernels_of_real_steps_fall_into_their_groups(name: str, group: str | None):
    assert group_of(name) == (group or "norms and activations, backward")


def test_groups_add_up_and_the_longest_comes_first():
    kernels = [("a_dgrad", 1.0, 2), ("nvjet_x", 2.5, 1), ("b_dgrad", 2.0, 3)]
    assert grouped(kernels) == [
        {"group": "convolutions, backward to maps", "ms": 3.0, "kernels": 5},
        {"group": "matrix products", "ms": 2.5, "kernels": 1},
    ]


def test_a_tiny_step_on_the_cpu_becomes_a_table(tmp_path: Path):
    out = tmp_path / "profile.json"
    words = ["--preset", "demo", "--device", "cpu", "--steps", "1", "--state", "small", "--out", str(out), *TINY]
    (found,) = main([*words, "data.resize=32x32", "views.crop=32x32"])
    assert json.loads(out.read_text()) == [found]
    assert sum(group["ms"] for group in found["groups"]) > 0
    assert "convolutions, forward" in {group["group"] for group in found["groups"]}
    other = found | {"state": "large", "groups": [{"group": "losses", "ms": 1.0, "kernels": 1234}]}
    lines = _profiles([found, other]).splitlines()
    assert lines[2] == "| `demo` | small | large |"
    assert any(line.startswith("| losses |") and line.endswith("| 1.00 (1,234) |") for line in lines)
    assert len(lines) == 5 + len({group["group"] for group in found["groups"]} | {"losses"})


def test_the_step_of_research_code_is_profiled_instead():
    words = ["--preset", "demo", "--device", "cpu", "--steps", "1", *TINY, "data.resize=32x32", "views.crop=32x32"]
    passes = {}
    for state, more in (("ours", []), ("research code", ["--reference"])):
        (found,) = main([*words, "--state", state, *more])
        passes[state] = {each["group"]: each["kernels"] for each in found["groups"]}["convolutions, forward"]
    # Labeled and mixed images apart, and two batches for each teacher
    assert passes["research code"] == 2 * passes["ours"]
