"""Screenshots of every dashboard page of a run, at 1280 x 800 and as tall as the page needs.

    python tests/screens.py RUN OUT_FOLDER
"""
import os, shutil, socket, sys, time
from pathlib import Path
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from playwright.sync_api import sync_playwright
from harness_s.dash.app import serve
from harness_s.dash.parts import PAGES


def small(path):
    "Packed again as tightly as PNG allows; the colours stay as they are."
    try: from PIL import Image
    except ImportError: return
    Image.open(path).convert('RGB').save(path, optimize=True)


def main(run, out, tallest=2200):
    out = Path(out); out.mkdir(parents=True, exist_ok=True)
    with socket.socket() as s: s.bind(('127.0.0.1', 0)); port = s.getsockname()[1]
    thread = serve([run], port=port, threaded=True); time.sleep(3)
    with sync_playwright() as p:
        b = p.chromium.launch(executable_path=os.environ.get('BROWSER_PATH') or shutil.which('chromium'), args=['--no-sandbox']); pg = b.new_page(viewport=dict(width=1280, height=800))
        for name in PAGES:
            pg.set_viewport_size(dict(width=1280, height=800)); pg.goto(f'http://127.0.0.1:{port}/?page={name}'); pg.locator('.stamp').get_by_text('seed').wait_for(timeout=120_000)
            if name != 'trajectory': pg.locator('.js-plotly-plot .main-svg').first.wait_for(state='attached', timeout=120_000)
            pg.wait_for_timeout(2500)
            tall = pg.locator('.page').bounding_box()['height'] + 110; pg.set_viewport_size(dict(width=1280, height=max(800, min(tallest, int(tall))))); pg.wait_for_timeout(1500)
            pg.screenshot(path=out/f'{name}.png'); small(out/f'{name}.png'); print(out/f'{name}.png', (out/f'{name}.png').stat().st_size)
        b.close()
    thread.stop()


if __name__ == '__main__': main(*sys.argv[1:3])
