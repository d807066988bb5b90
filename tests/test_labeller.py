"The behaviour labeller over real HTTP: what a model says is compared with the rules, what it says badly counts for nothing."
import json, random

import pytest
from harness_s.analyze.labeller import label_run
from harness_s.cli import main
from harness_s.config import RoleConfig, parse_config
from harness_s.core import Sampling, UserError
from harness_s.evaluate import evaluate
from harness_s.store import RunStore
from harness_s.train.warmstart import oracle_policy
from harness_s.policy.base import ByteChat
from endpoint import FAULTS, HARMLESS, Endpoint

N = 12
LOUD = [f for f in FAULTS if f not in ('hang', 'http_429', 'http_500', 'not_json')]
OPTIONS = dict(train=4, val=N)


@pytest.fixture
def run(tmp_path):
    "A run of the oracle under H0 and under a sibling that makes it look first and read back."
    from harness_s.bench.dbbench import DBBench
    bench = DBBench(**OPTIONS)
    store = RunStore.create(tmp_path / 'run', parse_config(dict(bench=dict(name='dbbench', options=OPTIONS), stages=['evaluate'])).model_dump(mode='json'))
    for name, h in (('h0', bench.base_harness()), ('s1', bench.siblings()['inspect'])):
        evaluate(oracle_policy(bench, ByteChat()), bench, bench.tasks('val'), h, 1, store=store, label=name)
    return tmp_path / 'run'


def role(e, **more): return RoleConfig(model='openai/labeller', api_base=e.base, timeout_s=20, retries=1, backoff_s=.01, **more)


def kept(run): return [json.loads(p.read_text()) for p in sorted((run / 'roles').glob('[0-9]*.json'))]


def test_agreement_with_a_careful_model(run):
    with Endpoint(lambda n: HARMLESS[n % 2] if n % 3 == 0 else None) as e:
        got = {r['behaviour']: r for r in label_run(run, role(e)).to_dicts()}
        n = len(e.log)
        assert n == 2 * N and all(r['n'] == 2 * N and r['n_missing'] == r['n_invalid'] == 0 for r in got.values())
        first = got['schema lookup before first use']
        assert first['rule_shown'] == first['model_shown'] == N and first['agree'] == first['kappa'] == 1      # the sibling looks, H0 does not
        never = got['several calls in one block']
        assert never['model_shown'] == never['rule_shown'] == 0 and never['agree'] == 1 and never['kappa'] is None
        label_run(run, role(e)); assert len(e.log) == n                                                         # replies are kept: asked once


def test_every_bad_reply_is_logged_and_inert(run):
    rng = random.Random(3)
    script = [rng.choice(LOUD) if rng.random() < .6 else None for _ in range(200)]
    with Endpoint(lambda n: script[n]) as e: got = label_run(run, role(e)).to_dicts()
    log, replies = e.log, kept(run)
    assert len(replies) == len(log) and len({m['fault'] for m in log}) > 8
    for r, m in zip(replies, log): assert (r['status'] == 'ok') == (m['fault'] is None), (m['fault'], r['status'], r['error'])
    usable = sum(r['status'] == 'ok' for r in replies)
    assert 0 < usable < 2 * N and all(r['n'] == usable and r['n'] + r['n_invalid'] == 2 * N for r in got)
    assert all(r['kappa'] == 1 for r in got if r['behaviour'] == 'schema lookup before first use')              # a bad reply is no "no"


@pytest.mark.parametrize('fault', LOUD)
def test_only_bad_replies_are_an_error(run, fault):
    with Endpoint(lambda n: fault) as e, pytest.raises(UserError, match='none of 3 trajectories got a usable reply'): label_run(run, role(e), most=3)
    assert not list((run / 'labels').glob('*')) and len(kept(run)) == len(e.log) == 6


def test_command(run, capsys, monkeypatch):
    with Endpoint() as e:
        assert main(['label', str(run), '--model', 'openai/labeller', '--api-base', e.base, '--most', '5']) == 0
    rows = json.loads(capsys.readouterr().out.strip().splitlines()[-1])
    assert {r['n'] for r in rows} == {5} and {'behaviour', 'agree', 'low', 'high', 'kappa', 'n', 'n_missing', 'n_invalid'} <= set(rows[0])
    assert main(['label', str(run)]) == 2 and 'roles.labeller' in capsys.readouterr().err
