"Each mistake ends in one clear sentence (what, where, remedy) and exit code 2; nothing already written is harmed."
import json, os, subprocess
import pytest
from harness_s.cli import main
from harness_s.store import RunStore


def fails(capsys, argv, *words):
    assert main([str(a) for a in argv]) == 2
    err = capsys.readouterr().err.strip()
    assert err.startswith('harness-s: ') and len(err.splitlines()) == 1 and 'Traceback' not in err
    for w in words: assert w in err, err
    return err


def config(tmp_path, text):
    p = tmp_path/'c.yaml'
    p.write_text(text)
    return p


def test_unknown_config_field(capsys, tmp_path):
    fails(capsys, ['run', config(tmp_path, 'train: {update: 3}'), '--out', tmp_path/'r'], 'train.update', "'updates'")
    assert not (tmp_path/'r').exists()


def test_bad_config_value(capsys, tmp_path):
    fails(capsys, ['run', config(tmp_path, 'train: {updates: -3}'), '--out', tmp_path/'r'], 'train.updates', '-3')


def test_bad_override(capsys, tmp_path): fails(capsys, ['demo', '--out', tmp_path/'r', '--set', 'seed'], 'a.b=value')
def test_missing_config(capsys, tmp_path): fails(capsys, ['run', 'no-such', '--out', tmp_path/'r'], 'no-such', 'demo')
def test_unknown_benchmark(capsys): fails(capsys, ['bench', 'nope', '--check'], 'nope', 'pocket')
def test_report_of_no_run(capsys, tmp_path): fails(capsys, ['report', tmp_path], 'run.json')


def test_unknown_harness_component(capsys, tmp_path):
    (tmp_path/'h.yaml').write_text('hokks: {a: {event: after_tool, message: hi}}')
    fails(capsys, ['run', config(tmp_path, f'stages: [evaluate]\nharnesses: [{tmp_path}/h.yaml]'), '--out', tmp_path/'r'], 'hokks', 'unknown')


def test_missing_harness_file(capsys, tmp_path):
    fails(capsys, ['run', config(tmp_path, 'stages: [evaluate]\nharnesses: [gone.yaml]'), '--out', tmp_path/'r'], 'gone.yaml')


def test_missing_data_file(capsys, tmp_path):
    fails(capsys, ['bench', 'dbbench', '--check', '--data', tmp_path/'gone.jsonl'], 'gone.jsonl')


def test_task_file_with_a_broken_line(capsys, tmp_path, dbbench_data):
    lines = dbbench_data.read_text().splitlines()[:3]
    p = tmp_path/'t.jsonl'
    p.write_text('\n'.join([lines[0], lines[1][:100], lines[2]]))
    fails(capsys, ['bench', 'dbbench', '--check', '--data', p], 't.jsonl', '2')


def test_missing_weights(capsys, tmp_path):
    fails(capsys, ['run', config(tmp_path, f'stages: [evaluate]\npolicy: {{name: {tmp_path}/weights}}'), '--out', tmp_path/'r'], 'weights')


def test_run_directory_of_another_config(capsys, tmp_path):
    RunStore.create(tmp_path/'r', {'seed': 9})
    before = (tmp_path/'r'/'run.json').read_text()
    fails(capsys, ['demo', '--out', tmp_path/'r'], 'another config', 'seed')
    assert (tmp_path/'r'/'run.json').read_text() == before


def _mounted(path, *options):
    path.mkdir()
    try: ok = subprocess.run(['mount', '-t', 'tmpfs', '-o', ','.join(options), 'tmpfs', str(path)], capture_output=True).returncode == 0
    except FileNotFoundError: ok = False
    if not ok: pytest.skip('a small file system cannot be mounted here (needs root)')


def test_read_only_folder(capsys, tmp_path):
    _mounted(tmp_path/'ro', 'ro', 'size=100k')
    try: fails(capsys, ['demo', '--out', tmp_path/'ro'/'r'], 'cannot write', 'Read-only')
    finally: subprocess.run(['umount', str(tmp_path/'ro')], check=True)


def test_full_disk_keeps_what_was_written(tmp_path):
    "The write that does not fit fails in one sentence; the unit before it is whole, and no temporary file stays."
    from harness_s.core import UserError
    _mounted(tmp_path/'small', 'size=200k')
    try:
        s = RunStore.create(tmp_path/'small'/'r', {'seed': 1})
        s.append('t', 'a', [dict(x=1)])
        with pytest.raises(UserError, match='cannot write.*No space left'): s.append('t', 'b', [dict(x=os.urandom(300_000).hex())])
        assert s.scan('t').collect()['x'].to_list() == [1] and s.run['config'] == {'seed': 1}
        assert sorted(p.name for p in (s.path/'t').iterdir()) == ['a.parquet']
    finally: subprocess.run(['umount', str(tmp_path/'small')], check=True)


@pytest.mark.parametrize('setting, words', [('policy.device=toaster', 'policy.device'), ('policy.device=cuda', 'policy.device'), ('train.arms=[grpo', 'not valid YAML'), ('seed=-5', 'seed')])
def test_values_of_overrides(capsys, tmp_path, setting, words):
    fails(capsys, ['demo', '--out', tmp_path/'r', '--set', setting], words)
    assert not (tmp_path/'r').exists()


def test_empty_config(capsys, tmp_path): fails(capsys, ['run', config(tmp_path, ''), '--out', tmp_path/'r'], 'nothing')
def test_bench_option_without_value(capsys): fails(capsys, ['bench', 'pocket', '--check', '--option', 'x'], 'key=value')
def test_run_directory_without_a_name(capsys): fails(capsys, ['demo', '--out', ''], 'no name')


def test_run_directory_is_a_file(capsys, tmp_path):
    (tmp_path/'f').write_text('mine')
    fails(capsys, ['demo', '--out', tmp_path/'f'/'r'], 'is a file')
    assert (tmp_path/'f').read_text() == 'mine'


def test_harness_file_that_is_not_text(capsys, tmp_path):
    (tmp_path/'h.yaml').write_bytes(b'\xff\xfe\x00')
    fails(capsys, ['run', config(tmp_path, f'stages: [evaluate]\nharnesses: [{tmp_path}/h.yaml]'), '--out', tmp_path/'r'], 'h.yaml')


def test_half_written_part_names_the_file(capsys, tmp_path):
    s = RunStore.create(tmp_path/'r', {'seed': 1})
    (s.path/'rollouts').mkdir()
    (s.path/'rollouts'/'u.parquet').write_bytes(b'PAR1 and no more')
    fails(capsys, ['report', s.path], 'u.parquet')


def test_run_file_of_the_wrong_kind(capsys, tmp_path):
    (tmp_path/'r').mkdir()
    (tmp_path/'r'/'run.json').write_text('[1]')
    fails(capsys, ['report', tmp_path/'r'], 'run.json')
