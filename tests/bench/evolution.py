"""Evolution from H0 alone and the router on held-out tasks, in the pocket world with the base policy. Prints one JSON line last.

    python tests/bench/evolution.py [--seed 0] [--tasks-seed 7] [--out DIR]

Every harness of the pool runs every test task three times; what a router would have got is then read off those rollouts, by task."""
import argparse, json, os, random, sys, tempfile, time
os.environ.setdefault('OMP_NUM_THREADS', '1'); os.environ.setdefault('HF_HUB_OFFLINE', '1')
from pathlib import Path
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
import polars as pl
from harness_s.analyze.properties import overlap, overlap_mean, union_coverage
from harness_s.analyze.router import rescue_table, router_quality
from harness_s.commands import evolve_run
from harness_s.config import load_config
from harness_s.evaluate import compare, evaluate
from harness_s.evolve.evolve import cost
from harness_s.evolve.pool import Pool
from harness_s.evolve.select import search_parents
from harness_s.opening import open_bench, open_policy
from harness_s.route.select import Router, calibrate, make_selector
from harness_s.store import RunStore


def selection():
    "B = 4 among 200 candidates over 10,000 tasks, a seventh of them clearly stronger: seconds, and whether the answer is proven."
    rng = random.Random(0)
    solved = {f'h{i:03d}': {t for t in range(10_000) if rng.random() < (.55 if i % 7 == 0 else .25)} for i in range(200)}
    t = time.perf_counter(); got = search_parents(solved, 4)
    return dict(select_s=round(time.perf_counter() - t, 3), select_proven=got.proven)


def main():
    a = argparse.ArgumentParser(); a.add_argument('--seed', type=int, default=0); a.add_argument('--tasks-seed', type=int, default=7, help='seed of the pocket tasks; 0 is the one that people have looked at'); a.add_argument('--out'); a = a.parse_args()
    out = a.out or tempfile.mkdtemp()
    config = load_config('demo', [f'seed={a.seed}', 'stages=[evolve]', 'evolve.cover_tasks=null', f'bench.options.seed={a.tasks_seed}'])
    evolve_run(config, out, show=False)
    store, pool, bench, policy = RunStore.open(out), Pool.load(f'{out}/pool'), open_bench(config), open_policy(config)
    for r in pool.lineage(): print(r['name'], r['parent'], r['causes'], 'repaired', r['repaired'], 'regressed', r['regressed'])
    cover = store.scan('rollouts').filter(pl.col('stage') == 'cover').collect()
    u = union_coverage(cover, pool.h0.id, seed=0).row(-1, named=True)
    evidence, test = calibrate(policy, pool, bench, config, store, show=False), bench.tasks('test')
    run = lambda i, h: evaluate(policy, bench, test, h, 3, store=store, arm='base', label=f'h{i}', run_seed=config.seed, limits=config.limits, width=config.width)
    frames = {h.id: run(i, h) for i, h in enumerate(pool)}
    every, router = pl.concat(frames.values()), Router(pool, bench, evidence, seed=config.seed)
    t = time.perf_counter(); ranks = {x.id: [h for h, _ in r] for x, r in zip(test, router.rankings(test, True))}; routed = time.perf_counter() - t
    first = pl.concat([frames[r[0]].filter(pl.col('task_id') == x) for x, r in ranks.items()])
    rank1 = compare(first, frames[pool.h0.id])['avg3']
    picks = {}
    for n in ('random', 'rule', 'adaptive', 'llm_4x2'):
        s = make_selector(n, pool, bench, evidence, config.seed); picks[n] = {x.id: s.ids(x, 8) for x in test}
    print(rescue_table(every, picks, pool.h0.id)); print(router_quality(every, ranks, pool.h0.id)['ranks'])
    print(json.dumps(dict(seed=a.seed, tasks_seed=a.tasks_seed, n_valid=len(pool.siblings), n_rejected=len(pool.rejected), search=cost(store), union=u['union'], h0_pass_k=u['h0'], k=u['k'], difference=u['diff'],
                          ci95=[u['diff_low'], u['diff_high']], n=u['n'], overlap_mean=overlap_mean(overlap(cover.filter(pl.col('index') == 0), pool.h0.id)),
                          rank1_minus_h0_avg3=rank1['value'], rank1_ci95=rank1['ci95'], rank1_n=rank1['n'], rank1_n_missing=rank1['n_missing'], route_s=round(routed, 3), **selection())))


if __name__ == '__main__': main()
