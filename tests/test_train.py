"Proofs about the trainer: the exact gradient, rho and w, data parallelism, models, adapters, resuming, reports R17-R20."
import os, signal, socket, subprocess, sys, time
from pathlib import Path
import numpy as np, polars as pl, pytest, torch
from safetensors.torch import load_file
sys.path.insert(0, str(Path(__file__).parent))
from harness_s.config import TrainConfig
from harness_s.core import GroupKey, Limits, Sampling, UserError
from harness_s.harness import ContextRule, Harness, Hook, PromptRule
from harness_s.store import RunStore
from harness_s.train import arms
from harness_s.train.arms import Collector, get_arm
from harness_s.train.checkpoint import checkpoints, optimizer_tensors
from harness_s.train.group import Group, signals, train_rows
from harness_s.train.loss import plan_micro_batches
from harness_s.train.trainer import RescueTrainer, _inner
from tiny import BabbleBench, TASKS, babble, flat, llama, made_up, qwen

torch.set_num_threads(1)
NOCLIP = dict(max_grad_norm=1e9)


def reference_gradient(policy, groups, temperature=1.0):
    "The gradient of -J, row by row, each in a forward pass of its own, as the equations stand."
    model, J = policy.model, 0.
    for g in groups:
        valid = [t for t in g.trajectories if t.verdict.outcome != 'missing']
        if len(valid) < 2: continue
        R = np.array([float(t.verdict.outcome == 'pass') for t in valid])
        N = sum(sum(r.mask) for t in valid for r in t.rows)
        for t, A in zip(valid, (R - R.mean()) / max(R.std(), 1e-6)):
            for r in t.rows:
                logp = torch.log_softmax(model(input_ids=torch.tensor([r.ids])).logits[0].double() / temperature, -1)
                for i, m in enumerate(r.mask):
                    if not m: continue
                    lp = logp[i - 1, r.ids[i]]; old = lp.detach()
                    rho, w = torch.exp(lp - old), torch.exp(old - r.logprobs[i]).clamp(0, 2)
                    J = J + w * torch.minimum(rho * A, rho.clamp(.8, 1.28) * A) / N / len(groups)
    model.zero_grad(); (-J).backward()
    got = flat(model, grad=True); model.zero_grad()
    return got, float(-J.detach())


def trainer_gradient(policy, groups, temperature=1.0, lora=None, **options):
    "The gradient that reaches the optimiser, the loss and the number of micro-batches."
    seen = {}
    t = RescueTrainer(policy, lambda u: groups, TrainConfig(lr=1e-9, lora_rank=lora, **NOCLIP, **options), Sampling(temperature=temperature))
    inner, prep = t._get_grad_norm, t._prepare_inputs
    t._get_grad_norm = lambda model, grad_norm=None: (seen.update(grad=flat(t.model, grad=True)), inner(model, grad_norm))[1]
    t._prepare_inputs = lambda x: seen.setdefault('micro', prep(x))
    rows = t.run(1)
    return seen['grad'], rows[0], len(seen['micro'])


@pytest.mark.parametrize('make,dtype,tol', [(llama, torch.float64, 1e-9), (qwen, torch.float64, 1e-7), (qwen, torch.float32, 1e-6)])
def test_gradient_equals_reference_in_any_layout(make, dtype, tol):
    """Proof 1, through the whole trainer: uneven lengths, several rows, missing members, an empty group, a uniform group; 1, 2 and 4 micro-batches.

    In double precision what is left is rounding, 1e-16; Qwen3.5's linear attention casts to fp32 whatever it is given, hence 1e-8 there."""
    groups = made_up(3) + made_up(4, ('fail',) * 4, n=1) + made_up(5, ('pass', 'missing'), n=1) + [Group(GroupKey('r', 'a', 0, 'none', 9), [])]
    policy = lambda: make(dtype=dtype)
    want, loss = reference_gradient(policy(), groups, temperature=.8)
    counts = set()
    lengths = [len(r.ids) for r in train_rows(groups)]
    budget = {len(plan_micro_batches(lengths, b)[0]): b for b in range(20, 400)}
    for tokens in (budget[1], budget[2], budget[4], 1):
        got, row, n = trainer_gradient(policy(), groups, .8, micro_tokens=tokens)
        counts.add(n)
        assert float((got - want).abs().max()) < tol * max(1, float(want.abs().max()))
        assert abs(row['loss'] - loss) < tol
    assert counts == {1, 2, 4, len(lengths)}
    got, _, _ = trainer_gradient(policy(), groups, .8, gradient_checkpointing=True)
    assert float((got - want).abs().max()) < tol * max(1, float(want.abs().max()))
    assert float(want.abs().max()) > 1e-4


HARNESSES = [Harness(prompt_rules={'r': PromptRule(slot='role', text='you babble')}),
             Harness(context=ContextRule(compact_after=2, keep_last=1, header='dropped')),
             Harness(hooks={'h': Hook(event='before_model', message='keep babbling')})]


@pytest.mark.parametrize('make,temperature', [(llama, 0.6), (llama, 1.0), (llama, 1.7), (qwen, 0.7)])
def test_rho_and_w_are_one_where_sampler_and_trainer_agree(make, temperature, monkeypatch):
    "Proof 2: every harness's own context, at any temperature; pi_old recomputed before the update (two iterations at a vanishing learning rate)."
    monkeypatch.setattr(arms, 'run_jobs', arms.run_jobs); babble(arms)
    c = Collector(get_arm('mixed_top4'), make(), BabbleBench(), TASKS, HARNESSES[0], 0, TrainConfig(tasks_per_update=4, group_size=4),
                  Limits(completion_tokens=10, model_calls=4), Sampling(temperature=temperature), fixed=HARNESSES[1:])
    groups = c(0).groups
    assert len({t.harness_id for g in groups for t in g.trajectories}) == 3 and any(len(t.rows) > 1 for g in groups for t in g.trajectories)
    if not any(g.effective for g in groups): pytest.fail('the made-up verdicts gave no contrast: choose another seed')
    for n in (1, 2):
        row = RescueTrainer(c.policy, lambda u: groups, TrainConfig(lr=1e-12, num_iterations=n), Sampling(temperature=temperature)).run(1)[0]
        assert abs(row['ratio_min'] - 1) < 1e-5 and abs(row['ratio_max'] - 1) < 1e-5 and row['clip_share'] == 0
        assert abs(row['w_min'] - 1) < 1e-4 and abs(row['w_max'] - 1) < 1e-4
    wrong = RescueTrainer(c.policy, lambda u: groups, TrainConfig(lr=1e-12), Sampling(temperature=temperature + .5)).run(1)[0]
    assert abs(wrong['w_mean'] - 1) > 1e-3          # the test can fail: another temperature is another distribution


@pytest.fixture(scope='module')
def pool_rollouts():
    "`make(sampling)`: the pocket policy's rollouts under every harness of a pool (two attempts a task, and two under H0), as groups with both outcomes."
    from harness_s.bench.base import get_benchmark
    from harness_s.bench.pocket import apply, base_harness, catalogue, scripted_siblings
    from harness_s.core import Verdict
    from harness_s.policy.torch import load_policy
    from harness_s.rollout import jobs_for, run_jobs
    bench, policy, h0 = get_benchmark('pocket'), load_policy('pocket'), base_harness()
    compacting = [apply(h0, m.edit) for m in catalogue() if m.component == 'context']
    pool = [*scripted_siblings().values(), *compacting]
    limits = Limits(model_calls=16, env_steps=16, completion_tokens=16, total_tokens=512)
    pairs = [*zip(bench.tasks('train'), pool), *((t, h) for t, h in zip(bench.tasks('train')[len(pool):], compacting * 8))]      # few rollouts are long enough to be split
    def make(s):
        jobs = [j for t, h in pairs for j in jobs_for([t], [h0, h], 2, 'pool')]
        trajs = run_jobs(policy, bench, jobs, limits, s, width=64, show=False)
        for i, t in enumerate(trajs): t.verdict = Verdict(outcome='pass' if i % 2 else 'fail')          # every row carries gradient
        return [Group(GroupKey('r', 'a', 0, trajs[i].task_id, i // 4), trajs[i:i + 4]) for i in range(0, len(trajs), 4)]
    return policy, len(pool), make


@pytest.mark.parametrize('temperature', [.6, 1.0, 1.3])
def test_rho_and_w_are_one_for_every_harness_of_a_pool(temperature, pool_rollouts):
    "Proof 2 with the policy, the engine and the harnesses of the demo: all six components, contexts that are split included."
    policy, n, make = pool_rollouts
    s = Sampling(temperature=temperature)
    groups = make(s)
    trajs = [t for g in groups for t in g.trajectories]
    assert n >= 20 and len({t.harness_id for t in trajs}) == n + 1 and sum(t.splits > 0 for t in trajs) >= 8
    row = RescueTrainer(policy, lambda u: groups, TrainConfig(lr=1e-12, num_iterations=2), s).run(1)[0]       # pi_old in a pass of its own
    print(dict(split=sum(t.splits > 0 for t in trajs)), {k: row[k] for k in ('n_scored_tokens', 'ratio_min', 'ratio_max', 'w_min', 'w_max')})
    assert max(abs(row['ratio_min'] - 1), abs(row['ratio_max'] - 1)) < 1e-5 and max(abs(row['w_min'] - 1), abs(row['w_max'] - 1)) < 1e-4


@pytest.mark.parametrize('temperature', [.6, 1.0, 1.3])
def test_truncated_sampling_is_scored_as_sampled_and_refused_in_training(temperature, pool_rollouts):
    "top_p 0.9: the policy's own scoring reproduces q (a token at the very edge of the mass may fall on either side); the trainer says no."
    policy, n, make = pool_rollouts
    s = Sampling(temperature=temperature, top_p=.9)
    rows = [r for g in make(s) for t in g.trajectories for r in t.rows]
    w = np.concatenate([np.exp(a - np.array(r.logprobs))[np.array(r.mask, bool)] for a, r in zip(policy.score(rows, temperature, .9), rows)])
    off = np.abs(w - 1)
    print(dict(tokens=len(w), beyond=int((off > 1e-4).sum()), largest=float(off[off <= 1e-4].max())))
    assert (off > 1e-4).sum() <= len(w) // 1000
    full = np.concatenate([(a - np.array(r.logprobs))[np.array(r.mask, bool)] for a, r in zip(policy.score(rows, temperature), rows)])
    assert (np.abs(full) > 1e-3).any()          # the full distribution would not do
    with pytest.raises(UserError, match='top_p'): RescueTrainer(policy, lambda u: [], TrainConfig(), s)


def test_w_is_truncated_and_detached():
    rows = [trainer_gradient(llama(), made_up(0, logq=q))[1] for q in (-50., -5.5)]
    assert rows[0]['w_min'] == rows[0]['w_max'] == 2 and rows[1]['w_min'] < 1


def test_two_processes_give_the_single_process_gradient(tmp_path):
    "Proof 3: gloo on the CPU, full and LoRA, rows shared out, a padding row where they do not divide."
    from ddp_worker import train
    processes('ddp_worker.py', tmp_path)
    for lora in (None, 4):
        one, two = train(lora)[0], load_file(tmp_path/f'{lora}.safetensors')
        assert torch.allclose(one['grad'], two['grad'], atol=1e-6) and float(one['grad'].abs().max()) > 1e-5
        assert torch.allclose(one['weights'], two['weights'], atol=2e-4) and torch.allclose(one['stats'], two['stats'])
        assert two['world'] == 2


def processes(script, out, **env):
    "Two processes of `script OUT` under gloo on the CPU."
    with socket.socket() as s: s.bind(('127.0.0.1', 0)); port = s.getsockname()[1]
    own = lambda r: {**os.environ, 'OMP_NUM_THREADS': '1', 'RANK': str(r), 'LOCAL_RANK': str(r), 'WORLD_SIZE': '2', 'LOCAL_WORLD_SIZE': '2',
                     'MASTER_ADDR': '127.0.0.1', 'MASTER_PORT': str(port), 'ACCELERATE_USE_CPU': 'true', **env}
    ps = [subprocess.Popen([sys.executable, str(Path(__file__).with_name(script)), str(out)], env=own(r), stderr=subprocess.PIPE) for r in (0, 1)]
    for p in ps:
        _, err = p.communicate(timeout=1500)
        assert p.returncode == 0, err.decode()[-2000:]


@pytest.mark.slow
def test_sharded_training_saves_and_resumes_as_one_process_does(tmp_path):
    "FSDP2 over two processes: an update, a checkpoint, a new trainer that goes on; weights and Adam's moments are those of one process, and load elsewhere."
    from fsdp_worker import train
    processes('fsdp_worker.py', tmp_path, ACCELERATE_USE_FSDP='true', FSDP_VERSION='2', FSDP_AUTO_WRAP_POLICY='TRANSFORMER_BASED_WRAP', FSDP_TRANSFORMER_CLS_TO_WRAP='LlamaDecoderLayer',
              FSDP_STATE_DICT_TYPE='FULL_STATE_DICT', FSDP_RESHARD_AFTER_FORWARD='true', FSDP_CPU_RAM_EFFICIENT_LOADING='false')
    for lora in (None, 4):
        one, rows = train(tmp_path/f'one-{lora}', lora, 2)
        a, b = (pl.read_parquet(tmp_path/f'{w}-{lora}'/'metrics.parquet') for w in ('one', 'sharded'))
        assert np.allclose(a['loss'], b['loss'], atol=1e-6) and np.allclose(a['grad_norm'], b['grad_norm'], rtol=1e-4) and a['n_scored_tokens'].equals(b['n_scored_tokens'])
        name = 'adapter_model.safetensors' if lora else 'model.safetensors'
        for step in ('00001', '00002'):
            mine, theirs = (tmp_path/f'{w}-{lora}'/'checkpoints'/step for w in ('one', 'sharded'))
            for f in (name, 'optimizer.safetensors'):
                x, y = load_file(mine/f), load_file(theirs/f)
                assert set(x) == set(y) and all(torch.allclose(x[k].float(), y[k].float(), atol=2e-4) for k in x), (lora, step, f)
        assert max(float((load_file(theirs/name)[k] - load_file(theirs.with_name('00001')/name)[k]).abs().max()) for k in load_file(theirs/name)) > 1e-3
        ids, fresh = torch.tensor([[5, 6, 7, 8, 9]]), llama(hidden=32).model
        if lora:
            from peft import PeftModel
            fresh = PeftModel.from_pretrained(fresh, theirs)
        else: fresh = type(fresh).from_pretrained(theirs)
        assert torch.allclose(fresh.eval()(input_ids=ids).logits, one.model(input_ids=ids).logits, atol=2e-2)


@pytest.mark.parametrize('lora', [None, 4])
@pytest.mark.parametrize('make', [llama, qwen])
def test_models_train_and_checkpoints_load_elsewhere(tmp_path, make, lora):
    "Proofs 4 and 5: full and LoRA; what is saved here gives the same logits in plain transformers and plain PEFT."
    p = make(); before = flat(p.model); base = {k: v.clone() for k, v in p.model.state_dict().items()}
    rows = RescueTrainer(p, made_up, TrainConfig(updates=2, lr=1e-2, lora_rank=lora), folder=tmp_path).run()
    assert all(np.isfinite(r['loss']) and r['grad_norm'] > 0 for r in rows)
    ids = torch.tensor([[5, 6, 7, 8, 9]])
    want = p.model(input_ids=ids).logits
    path = checkpoints(tmp_path)[-1]
    plain = type(make().model)
    if lora:
        from peft import PeftModel
        fresh = make().model; fresh.load_state_dict(base)
        moved = float((fresh(input_ids=ids).logits - want).detach().abs().max())
        got = PeftModel.from_pretrained(fresh, path).eval()(input_ids=ids).logits
        names = {n.split('.')[-4] for n, _ in p.model.named_parameters() if 'lora_A' in n}
        assert names >= ({'q_proj', 'down_proj'} | ({'in_proj_qkv', 'in_proj_z', 'in_proj_b', 'in_proj_a', 'out_proj'} if make is qwen else set()))
        assert moved > 1e-4
    else:
        got = plain.from_pretrained(path).eval()(input_ids=ids).logits
        assert not torch.equal(before, flat(p.model))
    assert torch.allclose(got, want, atol=1e-6)
    assert not [f for f in path.rglob('*') if f.suffix in ('.bin', '.pt', '.pth', '.pkl')]


def test_sampling_sees_the_new_weights():
    "The policy that samples is the model that was trained, LoRA included."
    from harness_s.policy.base import Request, sample
    for lora in (None, 4):
        p = llama(); ask = lambda: sample(p, [Request('k', [1, 2, 3], max_tokens=12, seed=1)])[0]
        old, print0 = ask(), p.fingerprint
        RescueTrainer(p, made_up, TrainConfig(lr=.3, lora_rank=lora, **NOCLIP)).run(3)
        new = ask()
        assert p.fingerprint != print0 and new.logprobs != old.logprobs
        ids = torch.tensor([[1, 2, 3] + new.ids])
        logp = torch.log_softmax(p.model(input_ids=ids).logits[0].float(), -1)
        want = [float(logp[2 + i, t]) for i, t in enumerate(new.ids)]
        assert np.allclose(new.logprobs, want, atol=1e-3)


# ---- reports

def test_r17_groups_are_named_not_hashed():
    "Same text, rewards 0000 and 1111: no contrast. Different prompts in one group: one scale."
    low, high = made_up(1, ('fail',) * 4, n=1)[0], made_up(1, ('pass',) * 4, n=1)[0]
    assert low.trajectories[0].rows[0].ids == high.trajectories[0].rows[0].ids
    assert train_rows([low, high]) == [] and not any(r.advantage for r in train_rows([low, high], inert=True))
    mixed = made_up(2, ('pass', 'fail', 'fail', 'fail'), n=1)[0]
    assert len({tuple(t.rows[0].ids[:2]) for t in mixed.trajectories}) == 4
    a = {round(r.advantage, 9) for r in train_rows([mixed])}
    assert a == {round(3 ** .5, 9), round(-1 / 3 ** .5, 9)}


def test_r18_uniform_batch_changes_nothing():
    "Counted, explained, and inert: no decay, no momentum, whatever came before."
    p = llama()
    t = RescueTrainer(p, lambda u: made_up(u, ('fail',) * 4 if u in (1, 2) else ('pass', 'fail', 'fail', 'missing')), TrainConfig(lr=1e-2, weight_decay=.3))
    seen = []
    names = lambda: optimizer_tensors(_inner(t.optimizer), {id(q): n for n, q in p.model.named_parameters()})
    t.on_update = lambda row: seen.append((row, flat(p.model), names()))
    t.run(4)
    (r0, w0, o0), (r1, w1, o1), (r2, w2, o2), (r3, w3, o3) = seen
    assert torch.equal(w0, w1) and torch.equal(w1, w2) and not torch.equal(w2, w3)
    assert all(torch.equal(o0[k], o2[k]) for k in o0) and r1['skipped'] and 'no gradient' in r1['reason'] and not r3['skipped']
    assert [r['step'] for r in (r0, r1, r2, r3)] == [0, 1, 2, 3] and r1['n_effective'] == 0 and r1['n_groups'] == 3
    only = llama(); w = flat(only.model)
    RescueTrainer(only, lambda u: made_up(u, ('pass',) * 4), TrainConfig(lr=1e-2, weight_decay=.3)).run(2)
    assert torch.equal(flat(only.model), w)


def test_r19_padding_rows_enter_no_statistic():
    from harness_s.train.loss import collate, policy_head, score
    mb = collate([])
    with policy_head(llama().model) as model: lp, ent = score(model, mb)
    assert len(lp) == len(ent) == len(mb.q) == 0
    g = made_up(0)
    assert signals(g)['n_valid'] == 9 and signals(g)['missing'] == 3 and signals(g)['reward'] == 1 / 3


def test_r20_missing_is_neither_reward_nor_trigger():
    g = made_up(0, ('missing', 'missing', 'fail', 'fail'), n=1)[0]
    h = made_up(0, ('missing',) * 4, n=1)[0]
    assert g.all_failed and not h.all_failed and signals([h])['reward'] is None and train_rows([h]) == []
    assert signals([made_up(0, ('pass', 'missing', 'missing', 'missing'), n=1)[0]])['reward'] == 1


# ---- resuming

def job(folder, updates, arm='grpo_h0_rescue', every=2):
    "A small arm with real rollouts of a random model; returns its trainer."
    babble(arms)
    cfg = TrainConfig(updates=updates, tasks_per_update=3, group_size=4, lr=1e-2, checkpoint_every=every)
    store, p, s = RunStore.create(folder, {}), llama(hidden=8, layers=1), Sampling()
    c = Collector(get_arm(arm), p, BabbleBench(), TASKS, HARNESSES[0], 7, cfg, Limits(completion_tokens=6, model_calls=2), s, store=store)
    t = RescueTrainer(p, c, cfg, s, folder=store.path/'train'/arm, arm=arm)
    t.run()
    return t


def table(folder, arm='grpo_h0_rescue'):
    m = pl.read_parquet(Path(folder)/'train'/arm/'metrics.parquet')
    return m.select([c for c in m.columns if not c.startswith('seconds_')])


def killed(fn, after):
    "Run `fn` in a forked process and kill it (SIGKILL) after `after` seconds; True when it was killed in time."
    pid = os.fork()
    if pid == 0:
        try: fn(); os._exit(0)
        except BaseException: import traceback; traceback.print_exc(); os._exit(1)
    end = time.monotonic() + after
    while time.monotonic() < end:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done: assert os.waitstatus_to_exitcode(status) == 0; return False
        time.sleep(.002)
    os.kill(pid, signal.SIGKILL); os.waitpid(pid, 0)
    return True


def kill_and_resume(tmp_path, kills, updates=10):
    t0 = time.monotonic()
    whole = job(tmp_path/'whole', updates)
    took, rng, n = time.monotonic() - t0, np.random.default_rng(0), 0
    for i in range(kills * 3):
        n += killed(lambda: job(tmp_path/'broken', updates), float(rng.uniform(.1, 1)) * took * .6)
        if n == kills: break
    back = job(tmp_path/'broken', updates)
    assert torch.equal(flat(whole.model), flat(back.model))
    assert table(tmp_path/'whole').equals(table(tmp_path/'broken')) and len(table(tmp_path/'broken')) == updates
    assert table(tmp_path/'whole')['n_effective'].sum() > 0 and table(tmp_path/'whole')['n_rescued'].sum() > 0
    return n


def test_kill_and_resume_bit_for_bit(tmp_path, monkeypatch):
    monkeypatch.setattr(arms, 'run_jobs', arms.run_jobs)
    assert kill_and_resume(tmp_path, 4) >= 1


@pytest.mark.slow
def test_twenty_kills(tmp_path, monkeypatch):
    monkeypatch.setattr(arms, 'run_jobs', arms.run_jobs)
    assert kill_and_resume(tmp_path, 20, updates=40) == 20


class Voted:
    "A selector that votes: the siblings in order, one ballot a task."
    def select(self, task, k): return HARNESSES[1:][:k]
    def ballot_rows(self, tasks): return [dict(task_id=t.id, voter='v', status='valid', ranking=[h.id for h in HARNESSES[1:]]) for t in tasks]


def test_ballots_of_a_rescue_are_whole_after_a_break_before_its_rollouts(tmp_path, monkeypatch):
    "Every group fails here. Broken off between ballots and rollouts, then gone on: the ballots are there once, one a rescued task."
    cfg, real = TrainConfig(tasks_per_update=3, group_size=4), arms.run_jobs
    def collect(name):
        store = RunStore.create(tmp_path/name, {})
        return store, Collector(get_arm('top8_adaptive'), llama(hidden=8, layers=1), BabbleBench(), TASKS, HARNESSES[0], 7, cfg, Limits(completion_tokens=4, model_calls=1), store=store, selector=Voted())
    def breaks(policy, bench, jobs, *a, **kw):
        if jobs[0].harness is not HARNESSES[0]: raise KeyboardInterrupt
        return real(policy, bench, jobs, *a, **kw)
    store, c = collect('broken')
    monkeypatch.setattr(arms, 'run_jobs', breaks)
    with pytest.raises(KeyboardInterrupt): c(0)
    assert store.has('rescue_ballots', 'train-top8_adaptive-00000') and not store.has('rollouts', 'train-top8_adaptive-00000-rescue')
    monkeypatch.setattr(arms, 'run_jobs', real)
    rescued = [g.key.task for g in collect('broken')[1](0).groups if g.replaced]
    whole, c = collect('whole'); c(0)
    rows = [s.scan('rescue_ballots').collect() for s in (store, whole)]
    assert rows[0].equals(rows[1]) and rows[0]['task_id'].to_list() == rescued and len(rescued) == 3


def test_finished_run_does_nothing_and_more_updates_go_on(tmp_path, monkeypatch):
    monkeypatch.setattr(arms, 'run_jobs', arms.run_jobs)
    whole = job(tmp_path/'whole', 5)
    job(tmp_path/'a', 3)
    stamp = {f: f.stat().st_mtime_ns for f in (tmp_path/'a').rglob('*') if f.is_file()}
    again = job(tmp_path/'a', 3)
    assert again.updates_done == 3 and stamp == {f: f.stat().st_mtime_ns for f in (tmp_path/'a').rglob('*') if f.is_file()}
    more = job(tmp_path/'a', 5)
    assert torch.equal(flat(more.model), flat(whole.model)) and table(tmp_path/'a').equals(table(tmp_path/'whole'))


def test_other_checkpoint_is_refused(tmp_path):
    RescueTrainer(llama(), made_up, TrainConfig(updates=1), folder=tmp_path).run()
    with pytest.raises(UserError, match='without LoRA'): RescueTrainer(llama(), made_up, TrainConfig(updates=2, lora_rank=4), folder=tmp_path).run()
    with pytest.raises(UserError, match='another model'): RescueTrainer(qwen(), made_up, TrainConfig(updates=2), folder=tmp_path).run()


def test_trackers_get_the_signals():
    from transformers import TrainerCallback
    seen = []
    class Tracker(TrainerCallback):
        def on_log(self, args, state, control, logs=None, **kw): seen.append(logs)
    t = RescueTrainer(llama(), made_up, TrainConfig(report_to=('none',)))        # logging on, no tracker of TRL's own
    t.add_callback(Tracker()); rows = t.run(2)
    assert [x['effective_group_rate'] for x in seen if 'effective_group_rate' in x] == [r['effective_group_rate'] for r in rows]
    assert seen[0]['w_mean'] == rows[0]['w_mean'] and 'learning_rate' in seen[0]


def test_a_loss_that_is_not_finite_stops_with_a_sentence():
    p = llama()
    with torch.no_grad(): p.model.lm_head.weight.fill_(float('nan'))
    with pytest.raises(UserError, match='the loss is nan'): RescueTrainer(p, made_up).run(1)
