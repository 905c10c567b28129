"""Runs the real SGLang and vLLM on a CPU with a small pair, and holds their rounds against the reference.

``python -m engines`` from the tests folder, or ``make test-engines``:

    plan.py         which runs there are: tree, sampling, draft variant, prompts
    pairs.py        target, draft and prompts of a run: the committed pair (drafts.py) or the embedded one (kimi.py)
    environment.py  one virtual environment for each engine
    run_sglang.py   serves one run, in SGLang's environment, with sglang_cpu/ in front of it
    run_vllm.py     serves one run, in vLLM's environment
    recording.py    what an engine did, as a golden file
    comparison.py   the same rounds by the reference, and where they differ

Their HTTP servers, which ``make test-servers`` asks, judges and explains from the command line:

    http_plan.py       which servers there are, rightly and wrongly wired
    http_server.py     starts one, and ends it; serve_sglang.py starts SGLang's in SGLang's environment
    http_recording.py  what a server is asked, and its answers, pages and log as golden files
    http_benchmark.py  the engine's own benchmarks, run against it

And the hidden states that they hand over, for readers of such dumps:

    dump_plan.py       which servers there are, and what they are asked
    dump_recording.py  the answers and files as golden ones; run_vllm_dumps.py has vLLM write its own,
                       sglang_cpu/dump_hook.py is a patch as people put into SGLang
"""
