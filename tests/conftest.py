"Test settings shared by all: one torch thread beside other tests, slow tests only on request."
import os
os.environ.setdefault('OMP_NUM_THREADS', '1')
os.environ.setdefault('TOKENIZERS_PARALLELISM', 'false')
os.environ.setdefault('HF_HUB_OFFLINE', '1')
import pytest
from pathlib import Path

DBBENCH = Path(os.environ.get('HARNESS_S_DBBENCH', Path(__file__).resolve().parents[2]/'shared'/'data'/'dbbench'/'standard.jsonl'))


def pytest_addoption(parser):
    parser.addoption('--slow', action='store_true', help='also run tests marked slow')


def pytest_configure(config):
    config.addinivalue_line('markers', 'slow: takes minutes; run with --slow')


def pytest_collection_modifyitems(config, items):
    if config.getoption('--slow'): return
    for i in items:
        if 'slow' in i.keywords: i.add_marker(pytest.mark.skip(reason='slow: run with --slow'))


@pytest.fixture(scope='session')
def dbbench_data():
    if not DBBENCH.is_file(): pytest.skip(f'no DBBench data at {DBBENCH}: set HARNESS_S_DBBENCH')
    return DBBENCH
