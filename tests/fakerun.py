"""A made-up run directory with everything that views read: pool, coverage, calibrations, profiles, ballots, training with tokens, evaluations by rank.

No policy is involved: rollouts pass by a fixed chance per family and harness. `python tests/fakerun.py DIR` writes one."""
import random, sys
from pathlib import Path
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import polars as pl
from harness_s.core import Check, Observation, Row, Task, ToolCall, Trajectory, Turn, Verdict, content_hash
from harness_s.evolve.pool import Pool, Sibling, pair_outcomes
from harness_s.harness import Harness, Hook, PromptRule
from harness_s.store import RunStore

FAMILIES = ['paging', 'lookup', 'readback', 'distinct', 'archive', 'plain']
EVIL = '<script>window.hacked = 1</script><img src=x onerror="window.hacked = 1">'


def tasks(split, n=4): return [Task(id=f'{split}-{f}-{i}', split=split, instruction=f'{f}: count item {i} {EVIL}', family=f) for f in FAMILIES for i in range(n)]


def pool_of(n=8):
    h0 = Harness(prompt_rules={'base': PromptRule(slot='role', text='You operate apps for the user.')})
    hs = [h0]
    for i in range(n):
        parent = h0 if i < 5 else hs[1 + i % 3]
        hs.append(parent.child(f'd{i}', f'teach {FAMILIES[i % 6]} {"again" if i > 5 else ""} {EVIL if i == 7 else ""}', hooks={f'k{i}': Hook(event='after_tool', condition='always', message=f'mind {FAMILIES[i % 6]} {i}')}))
    return hs


def trajectory(task, harness, index, where, chance, turns=3, tokens=True):
    "One rollout; `where` names it, `chance` decides it."
    id = content_hash([*where, task.id, harness.id, index], 16); rng = random.Random(id)
    out = 'missing' if rng.random() < .015 else 'pass' if rng.random() < chance else 'fail'
    v = Verdict(outcome='missing', reason='TimeoutError: the app did not answer') if out == 'missing' else Verdict.of(Check(name='final state', passed=out == 'pass', detail='' if out == 'pass' else f'rows differ {EVIL}'), Check(name='answer', passed=True))
    t = Trajectory(id, task.id, harness.id, index, rng.randrange(2 ** 40), v, env_steps=turns, wall_s=.05, stop='error' if out == 'missing' else 'finished')
    t.messages = [dict(role='system', content=f'You operate apps. {EVIL}', source='harness', turn=-1), dict(role='user', content=task.instruction, source='task', turn=-1)]
    t.rows = [Row(list(range(10, 22)), [0] * 12, [0.] * 12)]
    for i in range(turns):
        ids = [rng.randrange(3, 90) for _ in range(6)]; start = len(t.rows[0].ids)
        t.rows[0].sample(ids, [-rng.random() * 3 for _ in ids]); t.rows[0].force([1, 2, 7, 8])
        last = i == turns - 1
        t.turns.append(Turn(0, start, start + 6, f'list songs {i}', [ToolCall(name='finish' if last else 'list', args={} if last else {'app': 'songs', 'page': str(i)})], [Observation(text=f'song {i} {EVIL}', more=not last)], ['paging'] if i == 0 else [], [], 'unknown word' if i == 1 and index == 1 else ''))
        t.messages += [dict(role='assistant', content=f'list songs {i}', source='policy', turn=i), dict(role='user', content=f'song {i}; more pages {EVIL}', source='env', turn=i)]
    return t


def make_run(path, seed=0, updates=20, gain=0.0, status='done', external=False, siblings=8, lr=None):
    "Write the run; returns its store."
    store = RunStore.create(path, {'name': f'made-up {Path(path).name}', 'seed': seed, 'evaluate': {'rollouts': 3}, 'bench': {'name': 'pocket'}, 'policy': {'name': 'pocket'}, 'train': {'lr': lr or 3e-4 * (1 + seed)}}, versions={'python': '3.11', 'torch': '2.13.0'}, commit='abc1234')
    hs = pool_of(siblings); h0, sib = hs[0], hs[1:]; train, val, test = (tasks(s) for s in ('train', 'val', 'test'))
    external = h0.child('', 'made elsewhere', prompt_rules={'base': PromptRule(slot='role', text='Act for the user.')}) if external else None     # in no pool, used in no training
    def chance(t, h, step=0):
        base = (.1 if t.family != 'plain' else .5) + gain + step / 60
        if h.id == h0.id or h is external: return base - .05 * (h is external)
        i = hs.index(h) - 1
        return .75 if t.family == FAMILIES[i % 6] else .05 if t.family == FAMILIES[(i + 2) % 6] else base
    def roll(unit, jobs, at=0, **columns):
        ts = [trajectory(t, h, i, (seed, unit), chance(t, h, at)) for t, h, i in jobs]
        store.save_trajectories(unit, ts, tasks={t.id: t for t, *_ in jobs}, **columns); return ts
    roll('evolve-g1-local', [(t, h, 0) for h in hs for t in train[:12]], stage='evolve')
    cover = roll('cover-00000-000', [(t, h0, i) for t in val for i in range(8)], stage='cover', arm='', step=0)
    cover += roll('cover-00000-001', [(t, h, 0) for h in sib for t in val], stage='cover', arm='', step=0)
    out = {(t.task_id, t.harness_id): t.verdict.outcome for t in cover if t.index == 0}; of = lambda h: {t.id: out[t.id, h.id] for t in val}
    pool = Pool(h0, benchmark='pocket')
    for i, h in enumerate(sib):
        p = pair_outcomes(of(h0), of(h))
        pool.add(h, Sibling(id=h.id, generation=1 if i < 5 else 2, parent=h.parent, causes=(f'{FAMILIES[i % 6]}_missed', 'other'), intent=h.intent, local=(p,), val=p, solved=p.repaired + p.both, selected=i in (0, 2)))
    pool.freeze(); pool.save(store.path/'pool')
    for n, (name, step) in enumerate([('0', 0), ('top8_adaptive-10', 10), ('top8_adaptive-20', 20)]):
        cal = {(t.id, h.id): trajectory(t, h, 0, (seed, 'cal', name), chance(t, h, step * 2)).verdict.reward for t in val for h in hs}
        store.write_json(f'calibration/{name}.json', dict(step=step, policy='p', ids=pool.ids, n_missing=0, tasks=[t.model_dump(mode='json') for t in val], outcomes=[[cal[t.id, i] for i in pool.ids] for t in val], texts=[t.instruction for t in val], words=[[t.family] for t in val]))
        entry = lambda i: dict(when=FAMILIES[i % 6], behavior=f'follows every page ({n}) {EVIL}' if i % 2 else 'reads back after a write', tasks=[val[i].id, val[i + 1].id])
        store.write_json(f'profiles/{name}.json', {h.id: dict(harness_id=h.id, prefer=[entry(i)], avoid=[entry(i + 2)] if i % 3 else [], n=24, n_missing=0, repaired=4, regressed=1) for i, h in enumerate(sib)})
    best = {t.id: sib[FAMILIES.index(t.family) % len(sib)] if t.family != 'plain' else h0 for t in test}
    store.append('ballots', 'eval-top8_adaptive-00020', [dict(task_id=t.id, voter=v, status='abstain' if v == 'rates' and i % 5 == 0 else 'valid', reason=f'20 neighbours {EVIL}', ranking=[best[t.id].id, sib[1].id, sib[2].id, h0.id], with_h0=True, step=20, place=p)
                 for i, t in enumerate(test) for p, v in enumerate(('nearest', 'rates', 'profiles'))])
    store.append('rescue_ballots', 'top8_adaptive-00003', [dict(arm='top8_adaptive', update=3, task_id=train[0].id, voter='rates', status='valid', reason='0.5 0.4', ranking=[sib[0].id, sib[1].id], with_h0=False, step=0, place=0)])
    for a, arm in enumerate(('grpo', 'grpo_h0_rescue', 'top8_adaptive')):
        rows = []
        for s in range(updates):
            batch = [train[(s * 4 + j) % len(train)] for j in range(4)]
            first = roll(f'train-{arm}-{s:05d}-first', [(t, h0, i) for t in batch for i in range(4)], s, stage='train', arm=arm, step=s, phase='first')
            failed = [t for t in batch if not any(x.reward for x in first if x.task_id == t.id)] if a else []
            if failed: roll(f'train-{arm}-{s:05d}-rescue', [(t, sib[i % len(sib)] if a == 2 else h0, i) for t in failed for i in range(4)], s, stage='train', arm=arm, step=s, phase='rescue')
            rng = random.Random(f'{arm}{s}{seed}'); e = min(4, int(rng.random() * 3 + a * .7)); r = len(failed)
            rows.append(dict(step=s, arm=arm, n_groups=4, n_effective=e, effective_group_rate=e / 4, effective_token_share=e / 4, n_tokens=400, n_rescued=r, rescue_success=rng.randint(0, r) / r if r else None, reward=.2 + s / 60 + a / 20, reward_first=.15 + s / 80,
                             entropy=1.5 - s / 40, clip_share=.01 * rng.random(), w_mean=1.0, rollouts=16 + 4 * r, missing=0))
        (store.path/'train'/arm).mkdir(parents=True, exist_ok=True)
        pl.DataFrame(rows, infer_schema_length=None, schema_overrides=dict(rescue_success=pl.Float64)).write_parquet(store.path/'train'/arm/'metrics.parquet')
    for arm, g in (('base', 0), ('grpo', 8), ('grpo_h0_rescue', 12), ('top8_adaptive', 20)):
        roll(f'eval-{arm}-h0-00020-0000', [(t, h0, i) for t in test for i in range(3)], g, stage='eval', arm=arm, step=20)
        if arm != 'grpo_h0_rescue' and external: roll(f'eval-{arm}-elsewhere-00020-0000', [(t, external, i) for t in test for i in range(3)], g, stage='eval', arm=arm, step=20)
        if arm in ('base', 'top8_adaptive'):
            for r in (1, 2, 3): roll(f'eval-{arm}-rank{r}-00020-0000', [(t, best[t.id] if r == 1 else sib[r % len(sib)] if i % 2 else h0, i) for t in test for i in range(3)], g, stage='eval', arm=arm, step=20)
    for name, s in (('main', {'evolve': 12.5, 'evaluate': 3.0, 'peak_rss_mb': 800.0}), ('grpo', {'train': 30.0})): store.write_json(f'ledger/{name}.json', s)
    store.update(status=status)
    return store


if __name__ == '__main__': print(make_run(sys.argv[1]).path)
