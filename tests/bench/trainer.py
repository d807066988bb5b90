"""Speed and memory of rescue training at pocket scale.

`update_ratio`: an update of RescueTrainer (collate + forward + backward + clip + optimiser step + metrics) over that of a bare torch loop
over the same 64 rows in the same micro-batches; every row carries gradient, so that nothing is skipped. `arm_seconds`: a 40-update arm with
rollouts and rescues by random siblings. `rss_growth_mb`: resident memory after update 40 less that after update 5.

    python tests/bench/trainer.py [--updates 40] [--repeat 5] [--policy pocket] [--cpu]

--cpu takes CPU seconds of this process for `update_ratio`, for a machine that is shared. Prints one JSON line last. Run it on a quiet machine; `weights` says whether the shipped pocket policy or a random one of its shape was used.
"""
import argparse, json, os, sys, time
os.environ.setdefault('OMP_NUM_THREADS', '1'); os.environ.setdefault('HF_HUB_OFFLINE', '1')
from pathlib import Path
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
import psutil, torch
from harness_s.bench.base import get_benchmark
from harness_s.config import TrainConfig
from harness_s.core import Limits, UserError, Verdict
from harness_s.policy.torch import load_policy
from harness_s.train.arms import Collector, get_arm
from harness_s.train.group import train_rows
from harness_s.train.loss import plan_micro_batches
from harness_s.train.trainer import RescueTrainer

CLOCK = time.process_time if '--cpu' in sys.argv else time.perf_counter
LIMITS = Limits(model_calls=16, env_steps=16, completion_tokens=16, total_tokens=512)


def get_policy(name):
    "The policy and where its weights come from."
    try: return load_policy(name), name
    except UserError as e:
        from harness_s.pocket_policy import make_model, make_tokenizer
        from harness_s.policy.torch import TorchPolicy
        print(f'{e}; a random model of the same shape instead', file=sys.stderr)
        torch.manual_seed(0); tok = make_tokenizer()
        return TorchPolicy(make_model(), tok), 'random'


def siblings(bench, h0):
    "One sibling a prompt rule of the catalogue."
    rules = h0.state()['prompt_rules']
    return [h0.child(intent=m.intent, prompt_rules={**rules, **m.edit['prompt_rules']}) for m in bench.catalogue() if m.component == 'prompt_rules']


class Random8:
    "Eight siblings at random, by task id."
    def __init__(self, pool): self.pool = pool
    def select(self, task, k):
        import random
        return random.Random(task.id).sample(self.pool, min(k, len(self.pool)))


def contrast(groups):
    "The same rollouts with alternating verdicts: every row carries gradient."
    for g in groups:
        for i, t in enumerate(g.trajectories): t.verdict = Verdict(outcome='pass' if i % 2 else 'fail')
    return groups


def bare(model, groups, cfg, micro_tokens):
    "The update as anyone would write it, given rows, weights and micro-batches; seconds."
    opt = bare.__dict__.setdefault('opt', torch.optim.AdamW(model.parameters(), lr=cfg.lr, weight_decay=0.0))
    t0 = CLOCK()
    rows = train_rows(groups)
    for idx in plan_micro_batches([len(r.ids) for r in rows], micro_tokens)[0]:
        part = [rows[i] for i in idx]; n = max(len(r.ids) for r in part)
        ids = torch.tensor([r.ids + [0] * (n - len(r.ids)) for r in part])
        mask = torch.tensor([r.mask + [0] * (n - len(r.ids)) for r in part], dtype=torch.bool)
        q = torch.tensor([r.logprobs + [0.] * (n - len(r.ids)) for r in part])
        A, W = (torch.tensor([getattr(r, k) for r in part])[:, None].expand_as(q)[mask] for k in ('advantage', 'weight'))
        logits = model(input_ids=ids, use_cache=False).logits[:, :-1][mask[:, 1:]]
        lp = torch.log_softmax(logits, -1).gather(-1, ids[mask][:, None])[:, 0]
        old = lp.detach(); rho = torch.exp(lp - old); w = torch.exp(old - q[mask]).clamp(0, 2)
        (-(W * w * torch.minimum(rho * A, rho.clamp(.8, 1.28) * A)).sum()).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), cfg.max_grad_norm)
    opt.step(); opt.zero_grad()
    return CLOCK() - t0


def main():
    a = argparse.ArgumentParser(); a.add_argument('--updates', type=int, default=40); a.add_argument('--repeat', type=int, default=5)
    a.add_argument('--policy', default='pocket'); a.add_argument('--cpu', action='store_true'); a = a.parse_args()
    torch.set_num_threads(1)
    policy, weights = get_policy(a.policy)
    bench, cfg = get_benchmark('pocket'), TrainConfig(updates=a.updates)
    tasks, h0 = bench.tasks('train'), bench.base_harness()
    make = lambda arm, **kw: Collector(get_arm(arm), policy, bench, tasks, h0, 0, cfg, LIMITS, width=256, **kw)
    groups = contrast(make('grpo')(0).groups)
    n_tok = sum(len(r.ids) for r in train_rows(groups)); n_pol = sum(r.n for r in train_rows(groups))

    times, t = {'ours': [], 'bare': []}, None
    stamps = []
    t = RescueTrainer(policy, lambda u: groups, cfg, on_update=lambda r: stamps.append(CLOCK()))
    for i in range(a.repeat):                                   # taking turns, so that a busy moment hits both
        stamps.clear(); t.run(t.updates_done + 4)
        times['ours'] += [y - x for x, y in zip(stamps, stamps[1:])]
        times['bare'] += [bare(policy.model, groups, cfg, cfg.micro_tokens) for _ in range(3)]
    ours, base = min(times['ours']), min(times['bare'])

    policy, _ = get_policy(a.policy)
    rss, counts = [], []
    see = lambda row: (rss.append(psutil.Process().memory_info().rss / 2**20), counts.append(row))
    t0 = time.perf_counter()
    RescueTrainer(policy, make('random', selector=Random8(siblings(bench, h0))), cfg, on_update=see).run()
    arm = time.perf_counter() - t0
    out = dict(update_ratio=round(ours / base, 3), update_s=round(ours, 4), bare_s=round(base, 4), rows=len(train_rows(groups)), tokens=n_tok, policy_tokens=n_pol,
               arm_seconds=round(arm, 1), updates=a.updates, rollouts=sum(r['rollouts'] for r in counts), rss_growth_mb=round(rss[-1] - rss[min(4, len(rss) - 1)], 1), rss_mb=round(rss[-1], 1),
               seconds={k: round(sum(r[f'seconds_{k}'] for r in counts), 2) for k in ('sample', 'verify', 'route', 'score', 'train')}, weights=weights, threads=1, clock='cpu' if a.cpu else 'wall')
    print(json.dumps(out))


if __name__ == '__main__': main()
