"""Codes of the plugin for vLLM: VCG490 to VCG496."""

from scaffold.diagnostics.catalogue import Code

CODES: tuple[Code, ...] = (
    Code(
        "VCG490",
        "the plugin does not support this vLLM",
        "The plugin serves the releases that its adapters were proven on. With any other it registers nothing, and "
        "vLLM runs as it is. Use a newer version of this package, or port into a checkout (`vitcg-scaffold new`).",
    ),
    Code(
        "VCG491",
        "vLLM does not load the plugin",
        "vLLM finds plugins by the entry points of installed packages, group `vllm.general_plugins`, and loads those "
        "that VLLM_PLUGINS names, or all when it is unset. Either the installed package is older than the plugin, or "
        "VLLM_PLUGINS leaves `vitcg` out.",
    ),
    Code(
        "VCG492",
        "a VITCG_ variable has no meaning",
        "VITCG_DISABLE, VITCG_MODE, VITCG_MODELS and VITCG_ENCODER_GRAPHS control the plugin. With a wrong mode the "
        "plugin stays inactive. With wrong settings in VITCG_ENCODER_GRAPHS vLLM does not start with encoder graphs. "
        "A misspelt name, such as VITCG_DISABLED, does nothing, and the log says so. "
        "docs/reference/settings.md lists the variables and their values.",
    ),
    Code(
        "VCG493",
        "vLLM's files are not those of its release",
        "The plugin chooses its adapters by the release that vLLM reports. vLLM's source files speak another "
        "generation of the encoder CUDA graph protocol, so somebody patched them or built another commit. The plugin "
        "sees that when it loads an adapter, and leaves vLLM's own class in place.",
    ),
    Code(
        "VCG494",
        "VITCG_MODELS names a model without an adapter",
        "VITCG_MODELS takes names of adapters (`qwen2_vl`) or of architectures, separated by commas. For a model that "
        "has no adapter only the manager is used; a misspelt name has no effect.",
    ),
    Code(
        "VCG495",
        "vLLM's V2 model runner captures no encoder graphs",
        "vLLM 0.25 to 0.27 serve models with dense language models by their V2 runner by default, which has encoder "
        "graphs from 0.28 on only: `cudagraph_mm_encoder` has no effect there, with this plugin or without. "
        "VLLM_USE_V2_MODEL_RUNNER=0 chooses the other runner. The plugin warns when vLLM reads its configuration.",
    ),
    Code(
        "VCG496",
        "the plugin serves NVIDIA GPUs only",
        "The plugin ran on NVIDIA GPUs only. So it asks vLLM for its platform before it does anything, and leaves "
        "ROCm, XPU, TPU, NPU, the CPU and unknown platforms alone: model classes and managers are vLLM's, or those of "
        "the platform's own package. `doctor` knows the platform from the build of vLLM, or from a package that "
        "brings one.",
    ),
)
