"""One process of a sharded training run: `python fsdp_worker.py OUT`, with RANK, WORLD_SIZE and accelerate's FSDP settings in the environment.

accelerate turns FSDP off on CPUs by a check of the device kind, though torch can shard there (gloo); `allow_cpu` passes that check. The rest is
what runs on GPUs: accelerate's own wrapping, our gathering of weights and optimiser state, our checkpoints."""
import sys
from pathlib import Path
sys.path.insert(0, str(Path(__file__).parent))
import torch
torch.set_num_threads(1)
from harness_s.config import TrainConfig
from harness_s.train.trainer import RescueTrainer
from tiny import llama, made_up


def allow_cpu():
    "Let AcceleratorState take the branch that it takes for GPUs; the device stays the CPU."
    from accelerate.state import AcceleratorState, PartialState
    from accelerate.utils import DistributedType
    init = AcceleratorState.__init__
    def patched(self, *args, **kw):
        if AcceleratorState._shared_state == {}: PartialState(); PartialState._shared_state['distributed_type'] = DistributedType.MULTI_GPU
        init(self, *args, **kw)
    AcceleratorState.__init__ = patched


def train(out, lora, updates):
    "Train up to `updates` in all, going on from the newest checkpoint of `out`; the trainer and its rows."
    t = RescueTrainer(llama(hidden=32), made_up, TrainConfig(updates=updates, lr=1e-2, lora_rank=lora, max_grad_norm=1e9, micro_tokens=60, checkpoint_every=1, keep_optimizer=True), folder=out)
    return t, t.run()


if __name__ == '__main__':
    allow_cpu()
    for lora in [int(x) or None for x in sys.argv[2:] or ('0', '4')]:
        folder = Path(sys.argv[1])/f'sharded-{lora}'
        t, _ = train(folder, lora, 1)
        assert t.is_fsdp_enabled and t.accelerator.num_processes == 2
        t, rows = train(folder, lora, 2)          # a new trainer: goes on from the checkpoint
        assert len(rows) == 2
