"""A stand-in for a vLLM server (named so): the same routes on 127.0.0.1, answered by a TorchPolicy in this process.
`faults` maps the number of a completion request (from 0) to a fault; `raw`: log-probabilities before temperature, as vLLM by default."""
import json, threading
from pathlib import Path
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
import numpy as np
from harness_s.core import Row, Sampling
from harness_s.policy.base import Request, sample


class Standin:
    def __init__(self, policy, faults=None, raw=False, model='tiny'):
        self.policy, self.faults, self.raw, self.model, self.log, self.lock, self.loaded = policy, dict(faults or {}), raw, model, [], threading.Lock(), {}
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *a): pass
            def do_GET(self): self._say(200, {'data': [{'id': outer.model, 'max_model_len': outer.policy.max_len}] + [{'id': n, 'parent': outer.model} for n in outer.loaded]})
            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers['Content-Length'])))
                with outer.lock: self._say(*{'completions': outer.complete, 'load_lora_adapter': outer.load, 'unload_lora_adapter': outer.unload}[self.path.rpartition('/')[2]](body))
            def _say(self, code, obj):
                data = obj.encode() if isinstance(obj, str) else json.dumps(obj).encode()
                self.send_response(code); self.send_header('Content-Length', str(len(data))); self.end_headers(); self.wfile.write(data)
        self.server = ThreadingHTTPServer(('127.0.0.1', 0), Handler)
        self.url = f'http://127.0.0.1:{self.server.server_port}/v1'

    def __enter__(self): threading.Thread(target=self.server.serve_forever, daemon=True).start(); return self
    def __exit__(self, *a): self.server.shutdown(); self.server.server_close()

    def load(self, body):
        from peft import PeftModel
        if body['lora_name'] in self.loaded: return 400, {'error': f"The lora adapter '{body['lora_name']}' has already been loaded."}
        model = self.policy.model
        if hasattr(model, 'peft_config'): model = model.unload()
        self.policy.model = PeftModel.from_pretrained(model, body['lora_path']).eval()
        self.policy._fast = None; self.policy.weights_changed()
        self.loaded[body['lora_name']] = body['lora_path']
        return 200, f"Success: LoRA adapter '{body['lora_name']}' added successfully."

    def unload(self, body):
        if self.loaded.pop(body['lora_name'], None) is None: return 404, {'error': f"The lora adapter '{body['lora_name']}' cannot be found."}
        return 200, f"Success: LoRA adapter '{body['lora_name']}' removed successfully."

    def complete(self, body):
        n = len(self.log); self.log.append(body)
        if body['model'] not in (self.model, *self.loaded): return 404, {'error': f"no model {body['model']}"}
        if body['model'] in self.loaded and not Path(self.loaded[body['model']], 'adapter_config.json').is_file(): return 500, {'error': 'No adapter found'}   # a real server dies of it
        fault = self.faults.get(n)
        if fault == 'http_500': return 500, {'error': 'overloaded'}
        if fault == 'http_400': return 400, {'error': 'bad request'}
        if fault == 'not_json': return 200, '{"choices": ['
        sampling = Sampling(temperature=body['temperature'], top_p=body.get('top_p', 1.0))
        c = sample(self.policy, [Request(0, body['prompt'], sampling=sampling, max_tokens=body['max_tokens'], seed=body['seed'])])[0]
        lps = c.logprobs
        row = Row(); row.force(body['prompt']); row.sample(c.ids, c.logprobs)
        if self.raw: lps = self.policy.score([row])[0][len(body['prompt']):].tolist()
        choice = dict(text='', token_ids=c.ids, prompt_token_ids=body['prompt'], finish_reason=c.finish, logprobs=dict(token_logprobs=lps))
        if body.get('logprobs'): choice['logprobs']['top_logprobs'] = [{'x': self.best(body)}]
        if fault == 'no_ids': del choice['token_ids']
        if fault == 'other_prompt': choice['prompt_token_ids'] = body['prompt'][1:]
        if fault == 'no_stop' and c.finish == 'stop': choice['token_ids'] = c.ids[:-1]; choice['logprobs']['token_logprobs'] = lps[:-1]
        return 200, {'choices': [choice]}

    def best(self, body):
        import torch
        with torch.inference_mode(): logits = self.policy.model(torch.tensor([body['prompt']])).logits[0, -1]
        return float((logits / (1.0 if self.raw else body['temperature'])).log_softmax(-1).max())
