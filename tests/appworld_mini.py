"""Run by the Python of AppWorld's own environment, never imported: `python appworld_mini.py ROOT ID...` writes a tiny data folder of our own making
(one supervisor, an account of the note app, a task an id) in AppWorld's layout, so that the real server can be played to the end without AppWorld's data."""
import json, os, sys
root, ids = sys.argv[1], sys.argv[2:]
os.environ['APPWORLD_ROOT'] = root
from appworld import update_root; update_root(root)
from appworld.api_docs import prepare_api_docs
from appworld.apps import get_all_apps
from appworld.collections.models import ModelCollection
apps, base = get_all_apps(), os.path.join(root, 'data/base_dbs')
def write(path, obj):
    path = os.path.join(root, 'data', path); os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, 'w') as f: f.write(obj if isinstance(obj, str) else json.dumps(obj))
who = dict(first_name='Ada', last_name='Lovelace', email='ada@example.com', phone_number='1234567890')
more = dict(birthday='1990-01-01', sex='female')
os.makedirs(base)
mc = ModelCollection.load(to_db_home_path=base, from_db_home_path=base, load_apps=apps, create_db=True)
mc.admin.MainUser(**who, **more).save()
mc.simple_note.User(first_name='Ada', last_name='Lovelace', email=who['email'], password='password', verified=True).save()
mc.close()
for i in ids:
    home = f':memory:task_input-{i}'
    mc = ModelCollection.load(to_db_home_path=home, from_db_home_path=base, load_apps=apps)
    s = mc.supervisor.Supervisor(**who, **more); s.save()
    mc.supervisor.Task(supervisor_id=s.id, instruction=f'Write the note {i} and answer 4.').save()
    mc.supervisor.AccountPassword(supervisor_id=s.id, account_name='simple_note', password='password').save()
    mc.save(os.path.join(root, 'data/tasks', i, 'dbs'), format='changes')
    mc.close()
    write(f'tasks/{i}/specs.json', dict(instruction=f'Write the note {i} and answer 4.', supervisor=who, datetime='2023-05-18T12:00:00', db_version='0.1.0'))
    truth = {'metadata.json': dict(difficulty=1, mode='minimal', num_apps=1, num_apis=3, num_api_calls=3, num_solution_code_lines=3), 'public_data.json': {}, 'private_data.json': {}, 'answer.json': '4',
             'test_data.json': [dict(requirement='assert answers match.', label='no_op_fail'), dict(requirement='assert the note was made.', label='no_op_fail')],
             'evaluation.py': f"def evaluate(test, public_data, private_data, main_user, models, ground_truth_answer):\n    with test('assert answers match.'):\n        test.answer(models.end.supervisor.Task.all()[0].answer, ground_truth_answer)\n    with test('assert the note was made.'):\n        test.case([n.title for n in models.end.simple_note.Note.all()], '==', ['{i}'])\n",
             'compiled_solution.py': f"def solution(apis, requester):\n    token = apis.simple_note.login(username='{who['email']}', password='password')['access_token']\n    apis.simple_note.create_note(access_token=token, title='{i}', content='x')\n    apis.supervisor.complete_task(answer=4)\n"}
    for name, obj in truth.items(): write(f'tasks/{i}/ground_truth/{name}', obj)
write('datasets/train.txt', '\n'.join(ids))
for app in apps:
    if app != 'admin': write(f'api_docs/standard/{app}.json', {d['api_name']: dict(d, canary_string='') for d in prepare_api_docs(app)})
