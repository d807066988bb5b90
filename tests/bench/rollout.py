"""Rollouts per second of TorchPolicy against a straightforward loop of `model.generate` per turn.

Both sides run under the same engine (harness_s.rollout.run_jobs), on the same jobs, with the same weights, in the same process, greedily:
the baseline is a Policy whose sampler hands all waiting requests to one left-padded `generate` call. With greedy decoding both must sample
the same tokens; `same_tokens_*` is the share of trajectories for which they do, token for token.

    python tests/bench/rollout.py [--policy NAME_OR_DIR] [--n 256] [--n-smollm2 32] [--width 64] [--repeat 3] [--dbbench FILE] [--only pocket|smollm2]

--cpu counts CPU seconds of this process instead of wall time, for a machine that is shared. Prints one JSON line last. Times are the least of `--repeat` runs, the two sides taking turns. Run it on a quiet machine.
"""
import argparse, json, os, sys, time
os.environ.setdefault('OMP_NUM_THREADS', '1'); os.environ.setdefault('HF_HUB_OFFLINE', '1')
from pathlib import Path
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
CLOCK = time.process_time if '--cpu' in sys.argv else time.perf_counter     # --cpu: CPU seconds, for a busy machine
import numpy as np
import torch
from harness_s.bench.base import get_benchmark
from harness_s.core import Limits, Sampling, UserError
from harness_s.policy.base import Completion
from harness_s.policy.torch import TorchPolicy, load_policy
from harness_s.rollout import jobs_for, run_jobs


class GeneratePolicy:
    "The straightforward way: at each turn, `model.generate` on the whole conversations of all rows, left-padded into one batch."
    def __init__(self, policy: TorchPolicy): self.inner, self.name, self.chat, self.fingerprint = policy, 'generate', policy.chat, policy.fingerprint
    def sampler(self, width=None): return GenerateSampler(self.inner)


class GenerateSampler:
    width = None
    def __init__(self, policy):
        self.policy, self.waiting, self.stop = policy, [], sorted(policy.chat.stop_ids)
        self.pad = policy.tokenizer.pad_token_id if policy.tokenizer.pad_token_id is not None else (self.stop or [0])[0]

    def add(self, req): self.waiting.append(req)
    def forget(self, key): pass

    @torch.inference_mode()
    def poll(self):
        reqs, self.waiting = self.waiting, []
        if not reqs: return []
        n = max(len(r.ids) for r in reqs)
        ids = torch.tensor([[self.pad] * (n - len(r.ids)) + r.ids for r in reqs])
        mask = torch.tensor([[0] * (n - len(r.ids)) + [1] * len(r.ids) for r in reqs])
        out = self.policy.model.generate(input_ids=ids, attention_mask=mask, max_new_tokens=max(r.max_tokens for r in reqs), do_sample=False,
                                         eos_token_id=self.stop or None, pad_token_id=self.pad, use_cache=True)[:, n:].tolist()
        return [self._cut(r, o[:r.max_tokens]) for r, o in zip(reqs, out)]

    def _cut(self, r, ids):
        end = next((i for i, t in enumerate(ids) if t in self.stop), None)
        if end is not None: ids = ids[:end + 1]
        return Completion(r.key, ids, [0.0] * len(ids), 'length' if end is None else 'stop', self.policy.chat.decode(ids))


def compare(policy, bench, jobs, limits, width, repeat):
    "Run both sides `repeat` times in turns; speeds, equality of the tokens, and the largest logprob difference to a fresh forward."
    base = GeneratePolicy(policy)
    sides, got = {'ours': policy, 'generate': base} | ({'refilled': base} if len(jobs) > width else {}), {}
    took = {side: [] for side in sides}
    def run(p, side):
        parts = [jobs] if side != 'generate' else [jobs[i:i + width] for i in range(0, len(jobs), width)]
        return [x for part in parts for x in run_jobs(p, bench, part, limits, Sampling(temperature=0), width, show=False)]
    for side, p in sides.items(): run_jobs(p, bench, jobs[:2], limits, Sampling(temperature=0), width, show=False)   # warm up
    for _ in range(repeat):
        for side, p in sides.items():
            t = CLOCK()
            got[side] = run(p, side)
            took[side].append(CLOCK() - t)
    a, b = got['ours'], got['generate']
    same = [x.rows[-1].ids == y.rows[-1].ids and len(x.rows) == len(y.rows) and x.rows[0].ids == y.rows[0].ids for x, y in zip(a, b)]
    rows = [r for x in a for r in x.rows][:128]
    diff = max(float(np.abs(s - np.array(r.logprobs, np.float32)).max()) for s, r in zip(policy.score(rows), rows))
    return dict(ratio=round(min(took['generate']) / min(took['ours']), 2), ratio_refilled=round(min(took.get('refilled', took['generate'])) / min(took['ours']), 2), rollouts_per_s=round(len(jobs) / min(took['ours']), 2),
                rollouts_per_s_generate=round(len(jobs) / min(took['generate']), 2), same_tokens=round(sum(same) / len(same), 4), logprob_max_diff=diff,
                n=len(jobs), n_missing=sum(x.verdict.outcome == 'missing' for x in a), batch=width, turns=round(sum(len(x.turns) for x in a) / len(a), 2),
                tokens=round(sum(x.n_tokens for x in a) / len(a), 1), policy_tokens=round(sum(x.n_policy_tokens for x in a) / len(a), 1))


def pocket(args):
    policy, bench = load_policy(args.policy), get_benchmark('pocket')
    jobs = jobs_for(bench.tasks('train')[:max(1, args.n // 8)], bench.base_harness(), 8, 'bench')
    return compare(policy, bench, jobs, Limits(completion_tokens=16, total_tokens=min(512, policy.max_len)), args.width, args.repeat)


def smollm2(args):
    policy, bench = load_policy('smollm2'), get_benchmark('dbbench', data=args.dbbench)
    tasks = bench.tasks('test')
    n = args.n_smollm2
    jobs = jobs_for(tasks[::max(1, len(tasks) // n)][:n], bench.base_harness(), 1, 'bench')
    # 48 tokens: what a tool call with its SQL takes; untaught, the model writes prose up to the limit
    return compare(policy, bench, jobs, Limits(completion_tokens=48, model_calls=6, total_tokens=4096), min(32, n), 1)


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument('--policy', default='pocket'); p.add_argument('--n', type=int, default=256); p.add_argument('--width', type=int, default=64)
    p.add_argument('--n-smollm2', type=int, default=32)
    p.add_argument('--repeat', type=int, default=3); p.add_argument('--only', choices=['pocket', 'smollm2'])
    p.add_argument('--dbbench', default=os.environ.get('HARNESS_S_DBBENCH', str(Path(__file__).resolve().parents[3] / 'shared/data/dbbench/standard.jsonl')))
    p.add_argument('--cpu', action='store_true')
    args, out = p.parse_args(), {}
    for name, run in (('pocket', pocket), ('smollm2', smollm2)):
        if args.only not in (None, name): continue
        try: out |= {f'{k}_{name}': v for k, v in run(args).items()}
        except UserError as e: out[f'skipped_{name}'] = str(e)
    print(json.dumps({**out, 'threads': torch.get_num_threads(), 'torch': torch.__version__}))


if __name__ == '__main__': main()
