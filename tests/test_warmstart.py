"The warm start: what is taught is what a rollout would be; killed with SIGKILL it ends with the same weights."
import json, os, random, signal, subprocess, sys, time

import pytest
from harness_s.bench.base import get_benchmark
from harness_s.config import load_config
from harness_s.core import Limits, derive_seed
from harness_s.dialect import get_dialect
from harness_s.policy.base import ChatFormat
from harness_s.session import HarnessSession
from harness_s.train.sft import sft_examples
from harness_s.train.warmstart import conversations, some_harness
from tiny import TOK

SMALL = dict(conversations=8, held=2, guided=0.5, max_tokens=None, rows=2, micro_rows=2, epochs=2, save_every=2, lr=.01)


def config(base, **warm):
    return load_config(dict(bench=dict(name='dbbench', options=dict(train=20, val=4)), policy=dict(name=str(base), threads=1), warmstart={**SMALL, **warm}))


def test_examples_are_rollouts():
    "Ids and mask, put together by hand from session, dialect and chat template, are those of the examples; loss lies on the agent's tokens alone."
    bench, chat = get_benchmark('dbbench', train=30, val=4), ChatFormat(TOK)
    tasks = bench.tasks('train')
    talks = conversations(bench, chat, tasks, guided=.7, seed=3, limits=Limits(completion_tokens=4096, total_tokens=65_532))
    assert all(t.verdict.outcome == 'pass' for t in talks) and len(sft_examples(talks)) == 30
    rng = random.Random(derive_seed('warmstart', 3))
    kids = {h.id: h for h in (some_harness(bench, rng, .7) for _ in tasks)}
    for task, t, e in zip(tasks, talks, sft_examples(talks)):
        env, ids, mask = bench.env(task), [], []
        s = HarnessSession(kids[t.harness_id], get_dialect('json'), task, env.tools(), 30)
        said = s.open(env.reset(task)); env.close()
        ids += chat.start(said); mask += [0] * len(ids)
        answers = [m for m in t.messages if m['role'] == 'tool']
        for n, u in enumerate(t.turns):
            new = chat.encode(u.completion); ids += new; mask += [1] * len(new)
            if n < len(answers): new = chat.extend([answers[n]], True); ids += new; mask += [0] * len(new)
        assert e['input_ids'] == ids and e['labels'] == [i if m else -100 for i, m in zip(ids, mask)], task.id


def test_only_training_tasks_are_taught(tmp_path):
    "The chosen tasks: the first for learning, the last for the loss that is shown; neither validation nor test."
    from harness_s.store import RunStore
    from harness_s.train.warmstart import _taught
    from tiny import llama
    c = config(tmp_path)
    bench, store = get_benchmark('dbbench', train=20, val=4), RunStore.create(tmp_path / 'w', {})
    learn, held, count = _taught(c, c.warmstart, bench, llama(), store, False)
    ids = [t.task_id for t in store.load_trajectories('conversations')]
    assert ids == [f'dbbench-train-{i:04d}' for i in (*range(8), 18, 19)] and (len(learn), len(held)) == (8, 2) and count['not_passed'] == 0
    assert not {tuple(e['input_ids']) for e in learn} & {tuple(e['input_ids']) for e in held}


def test_figures(tmp_path):
    "A policy that does nothing against the oracle: what the figures say, and that other tasks are refused."
    from harness_s.analyze.beforeafter import warm_figures
    from harness_s.bench.base import spread
    from harness_s.core import UserError
    from harness_s.evaluate import evaluate
    from harness_s.policy.base import ByteChat, TextPolicy
    from harness_s.store import RunStore
    from harness_s.train.warmstart import oracle_policy
    bench = get_benchmark('dbbench', train=4, val=30)
    RunStore.create(tmp_path / 'model', {}).write_json('warmstart.json', dict(rows=4))
    def play(name, policy, n):
        evaluate(policy, bench, spread(bench.tasks('val'), n), bench.base_harness(), 3, store=RunStore.create(tmp_path / name, {}), limits=Limits(model_calls=4), arm=name)
        return {'val': tmp_path / name}
    before, after = play('before', TextPolicy(lambda m, t: 'hm'), 12), play('after', oracle_policy(bench, ByteChat()), 12)
    got = warm_figures(before, after, tmp_path / 'model', tmp_path / 'out', threads=1)
    assert got['val']['before']['pass3'] == 0 and got['val']['after']['avg3'] == 1 and got['val']['difference']['pass3']['value'] == 1 and got['val']['after']['n'] == 12
    assert json.loads((tmp_path / 'out/warmstart.json').read_text())['taught'] == dict(rows=4)
    lines = (tmp_path / 'out/families.csv').read_text().splitlines()
    assert lines[0].startswith('split,family,tasks,before') and sum(int(l.split(',')[2]) for l in lines[1:]) == 12 and sum(int(l.split(',')[6]) for l in lines[1:]) == 36
    with pytest.raises(UserError, match='same tasks'): warm_figures(before, play('other', TextPolicy(lambda m, t: 'hm', 'x'), 11), tmp_path / 'model', tmp_path / 'out')


def base(path):
    from tiny import llama
    p = llama(hidden=16, layers=1)
    p.model.save_pretrained(path); TOK.save_pretrained(path)
    return path


def test_killed_and_started_again(tmp_path):
    from harness_s.policy.torch import load_policy
    from harness_s.train.warmstart import warm_start
    c = config(base(tmp_path / 'base'))
    want = load_policy(warm_start(c, tmp_path / 'whole', show=False)).fingerprint
    p = subprocess.Popen([sys.executable, __file__, str(tmp_path)], env={**os.environ, 'OMP_NUM_THREADS': '1'}, stderr=subprocess.PIPE)
    first, end = tmp_path / 'killed/checkpoints/00002/state.json', time.time() + 300
    while not first.exists() and p.poll() is None and time.time() < end: time.sleep(.02)
    p.send_signal(signal.SIGKILL); assert p.wait() == -signal.SIGKILL, p.stderr.read().decode()[-2000:]
    assert not (tmp_path / 'killed/config.json').exists()
    out = warm_start(c, tmp_path / 'killed', show=False)
    assert load_policy(out).fingerprint == want and [r['steps'] for r in json.loads((out / 'warmstart.json').read_text())['log']] == [0, 2, 4, 6, 8]


if __name__ == '__main__':
    from pathlib import Path
    from harness_s.train import warmstart as w
    whole = w._part
    def slow(*a): out = whole(*a); time.sleep(.5); return out
    w._part = slow
    w.warm_start(config(Path(sys.argv[1]) / 'base'), Path(sys.argv[1]) / 'killed', show=False)
