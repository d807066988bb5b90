"""The test command: notebooks clean and in step, notebook tests, pytest, and one quick run of the main job.

    python tests/run_all.py [--slow]

Each part runs even if an earlier one failed; the last line counts them. Exit code 1 if any failed."""
import os, subprocess, sys, tempfile, time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
ENV = {**os.environ, 'OMP_NUM_THREADS': '1', 'TOKENIZERS_PARALLELISM': 'false', 'HF_HUB_OFFLINE': '1', 'LITELLM_LOCAL_MODEL_COST_MAP': 'True',
       'PATH': f'{BIN}{os.pathsep}{os.environ.get("PATH", "")}'}


def parts(slow, tmp):
    yield 'notebooks', [BIN/'nbdev_test', '--n_workers', '2', '--pause', '0', *(['--flags', 'slow'] if slow else [])]
    yield 'pytest', [sys.executable, '-m', 'pytest', 'tests', '-q', '-p', 'no:cacheprovider', '--timeout', '900', *(['--slow'] if slow else [])]
    yield 'main job', [BIN/'harness-s', 'demo', '--config', 'demo-quick', '--out', f'{tmp}/demo']


def main():
    slow, failed, ran = '--slow' in sys.argv, [], 0
    with tempfile.TemporaryDirectory() as tmp:
        for name, command in parts(slow, tmp):
            t = time.time(); ran += 1
            code = subprocess.run([str(c) for c in command], cwd=ROOT, env=ENV).returncode
            print(f'== {name}: {"ok" if code == 0 else f"FAILED ({code})"}, {time.time() - t:.0f} s', flush=True)
            if code: failed.append(name)
    print(f'{ran - len(failed)} passed, {len(failed)} failed')
    return bool(failed)


if __name__ == '__main__': sys.exit(main())
