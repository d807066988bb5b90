"""How the dashboard holds up against size, in real Chromium: a made-up run of 200,000 rollouts, a trajectory of 7,000 events, one of 130 MB.

    python tests/bench/viewer.py [--rollouts 200000] [--dir DIR] [--keep]

Prints one JSON line last:
  first_page_s             a new tab's first useful page (the score table is readable), from the server's first answer; the browser's own
                           assets are warm (a tab was opened before, and its figures were drawn)
  live_page_s              the same tab's controls are there (until then the text is the server's own, with no script run)
  first_figures_s          from the server's answer to another such tab until all figures of its first page are drawn
  page_turn_s              the longest of three page changes (training, overview) of a tab, each until the new page's text is there
  page_figures_s           a page change to training until all its figures are drawn
  rss_mb                   resident memory of the server process after everything
  long_trajectory_s        the first page of the 7,000-event trajectory, from the click that opens it
  huge_trajectory_blocks_s the longest wait of a second tab for a page while the 130 MB trajectory is being read
  huge_trajectory_s        that trajectory's own first page
Run it on a quiet machine.
"""
import argparse, json, os, shutil, socket, subprocess, sys, tempfile, time
os.environ.setdefault('OMP_NUM_THREADS', '1')
from pathlib import Path
ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT)); sys.path.insert(0, str(ROOT/'tests'))
import numpy as np
import polars as pl
from harness_s.store import RunStore

ARMS, PER_UNIT = ('grpo', 'grpo_h0_rescue', 'top8_adaptive'), 80


def make_big(path, n=200_000, long_events=7000, huge_mb=130, seed=0):
    "A run of `n` rollouts in units of 80, with a few messages and turns each, one long and one huge trajectory; returns (store, long id, huge id)."
    rng, store = np.random.default_rng(seed), RunStore.create(path, {'name': 'big', 'seed': seed, 'evaluate': {'rollouts': 3}}, versions={'polars': pl.__version__})
    units = n // PER_UNIT
    for u in range(units):
        share = u / units
        stage, arm = ('eval', ('base', *ARMS)[int((share - .9) * 40) % 4]) if share >= .9 else ('train', ARMS[u % 3])
        unit = f'eval-{arm}-h0-00040-{u:04d}' if stage == 'eval' else f'train-{arm}-{u // 3:05d}-first'
        put(store, unit, rollouts(rng, u, unit, stage, arm, 40 if stage == 'eval' else u // 3))
        if u % 500 == 0: print(f'{u}/{units} units', file=sys.stderr, flush=True)
    ids = [big_one(store, 'train-grpo-99990-first', 'long000000000000', long_events, 200), big_one(store, 'train-grpo-99991-first', 'huge000000000000', 130, huge_mb * 1_000_000 // 130)]
    for arm in ARMS:
        (store.path/'train'/arm).mkdir(parents=True, exist_ok=True)
        pl.DataFrame([dict(step=s, arm=arm, n_groups=8, n_effective=4, effective_group_rate=.5, effective_token_share=.5, n_tokens=400, reward=.3, rollouts=64) for s in range(units // 3)]).write_parquet(store.path/'train'/arm/'metrics.parquet')
    store.update(status='done')
    return store, *ids


def rollouts(rng, u, unit, stage, arm, step):
    n = PER_UNIT; task = rng.integers(0, 262, n)
    return pl.DataFrame(dict(id=[f'{u:08x}{i:08x}' for i in range(n)], unit=[unit] * n, stage=[stage] * n, arm=[arm] * n, step=[step] * n, phase=['first'] * n, task_id=[f't{t:03d}' for t in task], harness_id=[f'h{h:02d}' for h in rng.integers(0, 20, n)] if stage == 'train' else ['h00'] * n,
                             index=list(range(n)), seed=rng.integers(0, 2 ** 40, n).tolist(), outcome=rng.choice(['pass', 'fail', 'missing'], n, p=[.3, .69, .01]).tolist(), reward=[0.0] * n, reason=['state: rows differ'] * n, checks=['[{"name": "state", "passed": false, "detail": "rows differ"}]'] * n,
                             stop=['finished'] * n, env_steps=rng.integers(1, 12, n).tolist(), n_turns=[3] * n, splits=[0] * n, n_policy_tokens=[18] * n, n_tokens=[60] * n, wall_s=[.05] * n, n_parse_errors=[0] * n, family=[f'f{t % 8}' for t in task], split=['train'] * n))


def put(store, unit, df):
    ids = df['id'].to_list(); m = [('system', 'harness', -1), ('user', 'task', -1)] + [x for t in range(3) for x in (('assistant', 'policy', t), ('user', 'env', t))]
    for table, rows in (('messages', pl.DataFrame(dict(id=[i for i in ids for _ in m], i=list(range(len(m))) * len(ids), role=[r for r, _, _ in m] * len(ids), content=[f'message {k} of this rollout: list songs page {k}' for k in range(len(m))] * len(ids), source=[s for _, s, _ in m] * len(ids), turn=[t for _, _, t in m] * len(ids)))),
                        ('turns', turn_frame([i for i in ids for _ in range(3)], [0, 1, 2] * len(ids))), ('rollouts', df)): store.append(table, unit, rows)


def turn_frame(ids, turns):
    n = len(ids)
    return pl.DataFrame(dict(id=ids, turn=turns, row=[0] * n, start=[0] * n, stop=[6] * n, completion=['list songs'] * n, finish=['stop'] * n, parse_error=[''] * n, calls=['[{"name": "list", "args": {"app": "songs"}}]'] * n, observations=['[{"text": "song", "error": false, "empty": false, "more": true}]'] * n, hooks=[['paging']] * n, blocked=[[]] * n),
                        schema_overrides=dict(hooks=pl.List(pl.String), blocked=pl.List(pl.Int32)))


def big_one(store, unit, id, events, chars):
    "One trajectory of `events` messages of `chars` characters that do not compress to nothing, beside 79 ordinary ones."
    rng = np.random.default_rng(1); df = rollouts(rng, hash(id) & 0xffff, unit, 'train', 'grpo', 99990)
    ids = [id, *df['id'].to_list()[1:]]; df = df.with_columns(id=pl.Series(ids), task_id=pl.when(pl.int_range(pl.len()) == 0).then(pl.lit('t-' + id[:4])).otherwise('task_id'))
    put(store, unit, df)
    text = [rng.integers(32, 127, chars, dtype=np.uint8).tobytes().decode() for _ in range(events)]
    mine = pl.DataFrame(dict(id=[id] * events, i=list(range(events)), role=['assistant' if i % 2 else 'user' for i in range(events)], content=text, source=['policy' if i % 2 else 'env' for i in range(events)], turn=[i // 2 for i in range(events)]))
    others = pl.read_parquet(store.part('messages', unit)).filter(pl.col('id') != id)
    store.append('messages', unit, pl.concat([mine, others.cast(mine.schema)]))
    store.append('turns', unit, pl.concat([turn_frame([id] * (events // 2), list(range(events // 2))), pl.read_parquet(store.part('turns', unit)).filter(pl.col('id') != id)]))
    return id


def measure(url, long, huge):
    "Seconds by key, in Chromium."
    from playwright.sync_api import sync_playwright
    exe = os.environ.get('BROWSER_PATH') or shutil.which('chromium') or shutil.which('google-chrome'); out = {}
    with sync_playwright() as p:
        b = p.chromium.launch(executable_path=exe, args=['--no-sandbox']); ctx = b.new_context(viewport=dict(width=1280, height=800))
        warm = ctx.new_page(); warm.set_default_timeout(120_000); warm.goto(url); figures(warm, 'costs'); warm.wait_for_timeout(1000); warm.close()
        pg, start = opened(ctx, url); out['first_page_s'] = time.perf_counter() - start
        pg.locator('#first').wait_for(state='detached'); out['live_page_s'] = time.perf_counter() - start
        pg.locator('.nav-trajectory button').click(); pg.locator('.trajectory').first.get_by_text('message 2').wait_for()
        out['long_trajectory_s'] = timed(lambda: pick(pg, 't-long', '#0'))
        other, start = opened(ctx, url); figures(other, 'costs'); out['first_figures_s'] = time.perf_counter() - start
        quiet = turn_pages(other, 3)
        other.locator('.nav-overview button').click(); figures(other, 'costs')
        out['page_figures_s'] = timed(lambda: (other.locator('.nav-training button').click(), figures(other, 'rollouts')))
        t = time.perf_counter(); field = pg.get_by_label('task', exact=True); field.fill('t-huge'); field.press('Enter')
        waits = turn_pages(other, 6)
        pg.locator('.trajectory').first.get_by_text('t-huge').first.wait_for(); out['huge_trajectory_s'] = time.perf_counter() - t
        out |= dict(huge_trajectory_blocks_s=max(waits), page_turn_s=max(quiet)); b.close()
    return {k: round(v, 3) for k, v in out.items()}


def ready(pg, text): pg.get_by_text(text).first.wait_for()
def figures(pg, last): pg.locator(f'.fig-{last} .main-svg').first.wait_for(state='attached')
def opened(ctx, url):
    "A new tab on its way to the page, and when the server's first answer came."
    pg, start = ctx.new_page(), []; pg.set_default_timeout(120_000); pg.on('response', lambda r: start or start.append(time.perf_counter()))
    pg.goto(url, wait_until='commit'); ready(pg, 'Avg@3')
    return pg, start[0]
def timed(f):
    t = time.perf_counter(); f(); return time.perf_counter() - t
def pick(pg, task, sign):
    field = pg.get_by_label('task', exact=True); field.fill(task); field.press('Enter')
    pg.locator('.trajectory').first.get_by_text(task).first.wait_for(); pg.locator('.trajectory').first.get_by_text(sign).first.wait_for()
def turn_pages(pg, n):
    "Seconds of each of `n` page changes of a tab."
    out = []
    for i in range(n):
        nav, sign = (('training', 'Learning signals'), ('overview', 'How rollouts ended'))[i % 2]
        out.append(timed(lambda: (pg.locator(f'.nav-{nav} button').click(), ready(pg, sign))))
    return out


def main():
    p = argparse.ArgumentParser(); p.add_argument('--rollouts', type=int, default=200_000); p.add_argument('--dir'); p.add_argument('--keep', action='store_true'); a = p.parse_args()
    d = Path(a.dir or tempfile.mkdtemp()); t = time.time()
    if (d/'big'/'ids.json').is_file(): ids = json.loads((d/'big'/'ids.json').read_text())
    else:
        store, *ids = make_big(d/'big', a.rollouts); store.write_json('ids.json', ids)
    made = time.time() - t
    with socket.socket() as s: s.bind(('127.0.0.1', 0)); port = s.getsockname()[1]
    server = subprocess.Popen([sys.executable, '-c', f'import sys; sys.path.insert(0, {str(ROOT)!r}); from harness_s.dash.app import serve; serve([{str(d/"big")!r}], port={port})'], stdout=sys.stderr)
    try:
        import psutil
        t = time.time(); wait_port(port, server)
        out = dict(measure(f'http://127.0.0.1:{port}/', *ids), rss_mb=round(psutil.Process(server.pid).memory_info().rss / 1e6), server_start_s=round(time.time() - t, 1), made_s=round(made, 1), rollouts=a.rollouts)
    finally:
        server.terminate(); server.wait(20)
        if not a.keep and not a.dir: shutil.rmtree(d)
    print(json.dumps(out))


def wait_port(port, server):
    while True:
        with socket.socket() as s:
            if s.connect_ex(('127.0.0.1', port)) == 0: return
        if server.poll() is not None: sys.exit('the server ended')
        time.sleep(.1)


if __name__ == '__main__': main()
