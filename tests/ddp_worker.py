"One process of a data-parallel training run: `python ddp_worker.py OUT`, with RANK, WORLD_SIZE, ... in the environment."
import sys
from pathlib import Path
sys.path.insert(0, str(Path(__file__).parent))
import torch
torch.set_num_threads(1)
from harness_s.config import TrainConfig
from harness_s.train.trainer import RescueTrainer
from safetensors.torch import save_file
from tiny import flat, llama, made_up


def train(lora):
    "Two updates: ({first gradient, last weights, statistics}, trainer)."
    p, grads = llama(), []
    t = RescueTrainer(p, made_up, TrainConfig(lr=1e-2, lora_rank=lora, max_grad_norm=1e9, micro_tokens=60))
    step = t._get_grad_norm
    t._get_grad_norm = lambda model, grad_norm=None: (grads.append(flat(t.model, grad=True)), step(model, grad_norm))[1]
    rows = t.run(2)
    stats = torch.tensor([rows[0]['w_mean'], rows[0]['n_scored_tokens']])
    return {'grad': grads[0], 'weights': flat(t.model), 'stats': stats, 'world': torch.tensor(t.accelerator.num_processes)}, t


if __name__ == '__main__':
    for lora in (None, 4):
        got, t = train(lora)
        if t.accelerator.is_main_process: save_file(got, Path(sys.argv[1])/f'{lora}.safetensors')
