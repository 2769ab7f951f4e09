"""The indexes for caches of LLM engines, behind interfaces that engines have.

| module | follows |
|---|---|
| :mod:`oneread.adapters.hicache` | SGLang 0.5.23: `HiCacheStorage` |
| :mod:`oneread.adapters.vllm` | vLLM 0.33.0: `SecondaryTierManager.lookup` |
| :mod:`oneread.adapters.mooncake` | Mooncake 0.3.13.post1: lookups of `MooncakeDistributedStore` |

Nothing of an engine is imported. What moves data is the caller's.
"""
