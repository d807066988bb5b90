"Tiny random models, made-up groups and a small collector for the training tests."
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from harness_s.core import GroupKey, Observation, Row, Task, ToolSpec, Trajectory, Verdict
from harness_s.policy.base import byte_tokenizer
from harness_s.policy.torch import TorchPolicy

TOK = byte_tokenizer()


def llama(seed=0, dtype=torch.float32, hidden=16, layers=2):
    torch.manual_seed(seed)
    return TorchPolicy(LlamaForCausalLM(LlamaConfig(
        vocab_size=len(TOK), hidden_size=hidden, intermediate_size=2 * hidden, num_hidden_layers=layers, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=2048, initializer_range=.15)).to(dtype), TOK, name='tiny')


def qwen(seed=0, dtype=torch.float32):
    from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig
    torch.manual_seed(seed)
    c = Qwen3_5TextConfig(
        vocab_size=len(TOK), hidden_size=16, intermediate_size=32, num_hidden_layers=2, layer_types=['linear_attention', 'full_attention'],
        num_attention_heads=2, num_key_value_heads=1, head_dim=8, linear_num_key_heads=2, linear_num_value_heads=2,
        linear_key_head_dim=8, linear_value_head_dim=8, max_position_embeddings=2048, initializer_range=.15)
    return TorchPolicy(Qwen3_5ForCausalLM(c).to(dtype), TOK, name='tiny-qwen')


def flat(model, grad=False):
    return torch.cat([(p.grad if grad else p).detach().flatten().clone() for p in model.parameters() if p.requires_grad])


def made_up(update, outcomes=('pass', 'fail', 'fail', 'missing'), n=3, rows=2, logq=-5.5):
    "Groups with unequal lengths and several rows, the same for the same update."
    g, out = torch.Generator().manual_seed(update), []
    draw = lambda lo, hi, size: torch.randint(lo, hi, (size,), generator=g).tolist()
    for x in range(n):
        trajs = []
        for j, o in enumerate(outcomes):
            t = Trajectory(f'{update}.{x}.{j}', f't{x}', f'h{j}', j, 0, Verdict(outcome=o))
            for _ in range(1 + j % rows):
                r = Row(); r.force(draw(0, 200, 2 + j))
                for k in draw(1, 9, 2): r.sample(draw(0, 200, k), [logq] * k); r.force(draw(0, 200, 2))
                t.rows.append(r)
            trajs.append(t)
        out.append(Group_(GroupKey('r', 'grpo', update, f't{x}', x), trajs))
    return out


def Group_(*a):
    from harness_s.train.group import Group
    return Group(*a)


class Babble:
    "Any completion ends the episode; what it is worth, `worth` says below."
    fast, max_steps = True, 3
    def __init__(self, task): self.done = False
    def reset(self, task): return 'go'
    def tools(self): return [ToolSpec(name='say', parameters={'word': ''})]
    def call(self, call): return Observation(text='ok')
    def verify(self): return Verdict(outcome='fail')
    def close(self): pass


class BabbleBench:
    name, dialect = 'babble', 'words'
    def env(self, task): return Babble(task)


TASKS = [Task(id=f't{i}', split='train', instruction=f'task {i}') for i in range(5)]


def babble(monkeypatch_target):
    "Replace run_jobs in a module by one whose verdicts depend on the sampled tokens, so that a random model has both outcomes."
    from harness_s.rollout import run_jobs
    def run(*a, **kw):
        out = run_jobs(*a, **kw)
        for t in out:
            s = sum(t.rows[-1].ids)
            t.verdict = Verdict(outcome='pass' if s % 3 == 0 else 'missing' if s % 31 == 0 else 'fail')
            t.wall_s = 0.0
        return out
    monkeypatch_target.run_jobs = run
