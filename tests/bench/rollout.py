"""Rollouts per second of TorchPolicy against a straightforward loop of `model.generate` per turn.

All sides run under the same engine (harness_s.rollout.run_jobs): same jobs, weights, environments, batch size, process, and greedy decoding, so
they must sample the same tokens; `same_tokens_*` is the share of trajectories that agree token for token. The baselines, from plain to helped:

  loop      what one writes first: batches of `width` jobs, each turn the conversations of all rows that still run through the chat template,
            left-padded into one `generate` call, log-probabilities from its logits. Rows that have ended leave the batch.
  ids       the same, but fed the token ids that our engine keeps (no template, no tokenizer), and no log-probabilities at all.
  refilled  as `ids`, and our scheduler starts new jobs in the places of ended ones, so that the batch stays full.

`ratio_*` compares with `loop`, `ratio_ids_*` and `ratio_refilled_*` with the others.

    python tests/bench/rollout.py [--policy NAME_OR_DIR] [--n 512] [--n-smollm2 32] [--width 64] [--repeat 3] [--dbbench FILE] [--only pocket|smollm2] [--cpu]

Times are the least of `--repeat` runs, the sides taking turns. --cpu counts CPU seconds of this process instead of wall time, for a machine that
is shared. Prints one JSON line last.
"""
import argparse, json, os, sys, time
os.environ.setdefault('OMP_NUM_THREADS', '1'); os.environ.setdefault('HF_HUB_OFFLINE', '1')
from pathlib import Path
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
import numpy as np
import torch
from harness_s.bench.base import get_benchmark
from harness_s.core import Limits, Sampling, UserError
from harness_s.policy.base import Completion
from harness_s.policy.torch import TorchPolicy, load_policy
from harness_s.rollout import jobs_for, run_jobs

GREEDY = Sampling(temperature=0)


class GeneratePolicy:
    "`model.generate` behind the policy protocol; `text`: from messages, with log-probabilities."
    def __init__(self, policy: TorchPolicy, text: bool): self.inner, self.text, self.name, self.chat, self.fingerprint = policy, text, 'generate', policy.chat, policy.fingerprint
    def sampler(self, width=None): return GenerateSampler(self.inner, self.text)


class GenerateSampler:
    width = None
    def __init__(self, policy, text):
        self.policy, self.text, self.waiting, self.stop, self.tok = policy, text, [], sorted(policy.chat.stop_ids), policy.tokenizer
        self.pad = self.tok.pad_token_id if self.tok.pad_token_id is not None else self.stop[0]

    def add(self, req): self.waiting.append(req)
    def forget(self, key): pass

    def batch(self, reqs):
        "Ids and mask, left-padded."
        if self.text:
            self.tok.padding_side, self.tok.pad_token_id = 'left', self.pad
            got = self.tok.apply_chat_template([self.policy.chat._fit(r.messages) for r in reqs], add_generation_prompt=True, padding=True, return_tensors='pt', return_dict=True)
            return got['input_ids'], got['attention_mask']
        n = max(len(r.ids) for r in reqs)
        pad = lambda fill, rows: torch.tensor([[fill] * (n - len(x)) + x for x in rows])
        return pad(self.pad, [r.ids for r in reqs]), pad(0, [[1] * len(r.ids) for r in reqs])

    @torch.inference_mode()
    def poll(self):
        reqs, self.waiting = self.waiting, []
        if not reqs: return []
        ids, mask = self.batch(reqs)
        out = self.policy.model.generate(input_ids=ids, attention_mask=mask, max_new_tokens=max(r.max_tokens for r in reqs), do_sample=False, eos_token_id=self.stop,
                                         pad_token_id=self.pad, use_cache=True, return_dict_in_generate=True, output_logits=self.text)
        new, lps = out.sequences[:, ids.shape[1]:], None
        if self.text: lps = torch.stack([l.float().log_softmax(-1).gather(-1, new[:, i, None])[:, 0] for i, l in enumerate(out.logits)], 1).tolist()
        return [self.cut(r, t[:r.max_tokens], lps[i] if lps else None) for i, (r, t) in enumerate(zip(reqs, new.tolist()))]

    def cut(self, r, ids, lps):
        end = next((i for i, t in enumerate(ids) if t in self.stop), None)
        if end is not None: ids = ids[:end + 1]
        text = self.tok.decode(ids if end is None else ids[:-1], clean_up_tokenization_spaces=False) if self.text else self.policy.chat.decode(ids)
        return Completion(r.key, ids, lps[:len(ids)] if lps else [0.0] * len(ids), 'length' if end is None else 'stop', text)


def compare(policy, bench, jobs, limits, width, repeat, sides, cpu):
    "Run all sides `repeat` times in turns: speeds, equality of the tokens, and the largest logprob difference to a fresh forward."
    clock = time.process_time if cpu else time.perf_counter
    makers = dict(ours=policy, loop=GeneratePolicy(policy, True), ids=GeneratePolicy(policy, False), refilled=GeneratePolicy(policy, False))
    took, got = {s: [] for s in sides}, {}
    def run(side, jobs):
        size = width if side in ('loop', 'ids') else len(jobs)
        return [t for i in range(0, len(jobs), size) for t in run_jobs(makers[side], bench, jobs[i:i + size], limits, GREEDY, width, show=False)]
    for s in sides: run(s, jobs[:2])                        # warm up
    for _ in range(repeat):
        for s in sides:
            t = clock(); got[s] = run(s, jobs); took[s].append(clock() - t)
    ids = {s: [[r.ids for r in t.rows] for t in got[s]] for s in sides}
    same = {s: sum(a == b for a, b in zip(ids['ours'], ids[s])) / len(jobs) for s in sides if s != 'ours'}
    a, rows = got['ours'], [r for t in got['ours'] for r in t.rows][:128]
    diff = max(float(np.abs(s - np.array(r.logprobs, np.float32)).max()) for s, r in zip(policy.score(rows), rows))
    mean = lambda f: round(sum(f(t) for t in a) / len(a), 1)
    out = {('ratio' if s == 'loop' else f'ratio_{s}'): round(min(took[s]) / min(took['ours']), 2) for s in sides if s != 'ours'}
    out |= {('rollouts_per_s' if s == 'ours' else f'rollouts_per_s_{s}'): round(len(jobs) / min(took[s]), 2) for s in sides}
    return out | dict(same_tokens=round(min(same.values()), 4), logprob_max_diff=diff, n=len(jobs), n_missing=sum(t.verdict.outcome == 'missing' for t in a),
                      batch=width, turns=mean(lambda t: len(t.turns)), tokens=mean(lambda t: t.n_tokens), policy_tokens=mean(lambda t: t.n_policy_tokens))


def pocket(args):
    "Training tasks x 8 under H0, as an update samples them."
    policy, bench = load_policy(args.policy), get_benchmark('pocket')
    jobs = jobs_for(bench.tasks('train')[:max(1, args.n // 8)], bench.base_harness(), 8, 'bench')
    return compare(policy, bench, jobs, Limits(model_calls=16, env_steps=16, completion_tokens=16, total_tokens=512), args.width, args.repeat,
                   ('ours', 'loop', 'ids', 'refilled'), args.cpu)


def smollm2(args):
    "DBBench's real records. 48 tokens are what a tool call with its SQL takes; untaught, the model often writes prose up to the limit."
    policy, bench = load_policy('smollm2'), get_benchmark('dbbench', data=args.dbbench)
    tasks, n = bench.tasks('test'), args.n_smollm2
    jobs = jobs_for(tasks[::max(1, len(tasks) // n)][:n], bench.base_harness(), 1, 'bench')
    return compare(policy, bench, jobs, Limits(completion_tokens=48, model_calls=6, total_tokens=4096), min(32, n), 1, ('ours', 'ids') if args.quick else ('ours', 'loop', 'ids'), args.cpu)


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument('--policy', default='pocket'); p.add_argument('--n', type=int, default=512); p.add_argument('--n-smollm2', type=int, default=32)
    p.add_argument('--width', type=int, default=64); p.add_argument('--repeat', type=int, default=3); p.add_argument('--only', choices=['pocket', 'smollm2'])
    p.add_argument('--cpu', action='store_true'); p.add_argument('--quick', action='store_true', help='SmolLM2: only the leanest baseline')
    p.add_argument('--dbbench', default=os.environ.get('HARNESS_S_DBBENCH', str(Path(__file__).resolve().parents[3] / 'shared/data/dbbench/standard.jsonl')))
    args, out = p.parse_args(), {}
    for name, run in (('pocket', pocket), ('smollm2', smollm2)):
        if args.only not in (None, name): continue
        try: out |= {f'{k}_{name}': v for k, v in run(args).items()}
        except UserError as e: out[f'skipped_{name}'] = str(e)
    print(json.dumps({**out, 'threads': torch.get_num_threads(), 'torch': torch.__version__, 'clock': 'cpu' if args.cpu else 'wall'}))


if __name__ == '__main__': main()
