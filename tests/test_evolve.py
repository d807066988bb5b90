"Evolution and calibration killed with SIGKILL at random moments and started again: the same pool, evidence and spending."
import json, os, random, signal, subprocess, sys, threading, time
from pathlib import Path

import pytest
from harness_s.config import parse_config
from harness_s.policy.base import TextPolicy
from harness_s.store import RunStore
from rooms import CONFIG, Rooms, obey


def once(folder, slow=0.0):
    "The whole path; `slow` seconds a batch of the policy, so that a kill lands somewhere."
    from harness_s.evolve.evolve import evolve
    from harness_s.route.select import calibrate
    def fn(messages, task):
        time.sleep(slow)
        return obey(messages, task)
    config, policy = parse_config(CONFIG), TextPolicy(fn, 'obey')
    store = RunStore.create(folder, config.model_dump(mode='json'))
    pool = evolve(policy, Rooms(), config, store, show=False)
    calibrate(TextPolicy(fn, 'trained'), pool, Rooms(), config, store, step=10, show=False)


def result(folder):
    "Everything that must not depend on a kill: files of pool, calibration, profiles; rollouts and outcomes; spending without time."
    from harness_s.evolve.evolve import cost
    store = RunStore.open(folder)
    files = {str(p.relative_to(folder)): p.read_text() for d in ('pool', 'calibration', 'profiles') for p in sorted((Path(folder) / d).glob('[!.]*.json'))}
    rows = store.scan('rollouts').select('id', 'unit', 'outcome', 'seed').collect().sort('unit', 'id').rows()
    ledger = {p.name: {k: v for k, v in json.loads(p.read_text()).items() if k != 'seconds'} for p in sorted((Path(folder) / 'ledger').glob('[!.]*.json'))}
    return files, rows, ledger, {k: v for k, v in cost(store).items() if k != 'seconds'}


@pytest.fixture(scope='module')
def unbroken(tmp_path_factory):
    d = tmp_path_factory.mktemp('whole') / 'run'
    once(d)
    return result(d)


def test_pool_is_useful(unbroken):
    pool = json.loads(unbroken[0]['pool/pool.json'])
    assert pool['frozen'] and len(pool['order']) >= 5
    assert any(r['generation'] == 2 for r in pool['records'].values())
    assert max(len(r['solved']) for r in pool['records'].values()) > len(pool['records'][pool['order'][0]]['solved'])


def test_kill_and_resume(unbroken, tmp_path):
    kills = 0
    for seed in range(2, 3):
        folder, rng = tmp_path / str(seed), random.Random(seed)
        for _ in range(12):
            p = subprocess.run([sys.executable, __file__, str(folder), str(rng.uniform(.05, .5) * (1 + kills / 4))], stderr=subprocess.PIPE)
            if p.returncode == 0: break
            assert p.returncode == -signal.SIGKILL, p.stderr.decode()[-2000:]
            kills += 1
        else: once(folder)
        assert result(folder) == unbroken
    assert kills >= 3


def test_ledger_lost_in_a_kill(unbroken, tmp_path):
    "Killed between the rollouts and their ledger line: the line is made again from the rollouts."
    once(tmp_path / 'r')
    for f in (tmp_path / 'r/ledger').glob('evolve-g1-*.json'): f.unlink()
    for f in (tmp_path / 'r/pool').glob('*.json'): f.unlink()
    once(tmp_path / 'r')
    assert result(tmp_path / 'r') == unbroken


if __name__ == '__main__':
    import harness_s.evolve.evolve, harness_s.route.select, polars     # the clock starts when the imports are done
    threading.Timer(float(sys.argv[2]), lambda: os.kill(os.getpid(), signal.SIGKILL)).start()
    once(sys.argv[1], slow=.0004)
    os._exit(0)
