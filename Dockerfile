# The worker and the command line. Also the base of an image with a team's own tools:
#
#   FROM surehand:0.1.0
#   COPY acme /app/acme
#
# with SUREHAND_TOOL_MODULES=acme.billing,acme.mail.

FROM python:3.13-slim AS packages
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
RUN python -m venv /opt/venv
COPY requirements-runtime.lock .
# Wheels only: nothing is compiled, so no compiler is needed and no package's own code runs here.
RUN /opt/venv/bin/pip install --require-hashes --only-binary :all: -r requirements-runtime.lock

# What is in it, for whoever asks: /app/surehand.cdx.json.
FROM packages AS bill-of-materials
COPY requirements-supply-chain.lock pyproject.toml ./
RUN python -m venv /opt/supply-chain \
    && /opt/supply-chain/bin/pip install --require-hashes --only-binary :all: -r requirements-supply-chain.lock \
    && /opt/supply-chain/bin/cyclonedx-py environment --pyproject pyproject.toml --mc-type application \
        --output-reproducible --output-format JSON --output-file /opt/surehand.cdx.json /opt/venv/bin/python

FROM python:3.13-slim
ENV PATH=/opt/venv/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
# A fixed number, so that `runAsNonRoot` can be checked and a volume's owner is known.
RUN useradd --uid 10001 --create-home --shell /usr/sbin/nologin surehand \
    && install --directory --owner surehand --group surehand /data
COPY --from=packages /opt/venv /opt/venv
WORKDIR /app
COPY --from=bill-of-materials /opt/surehand.cdx.json ./
COPY LICENSE worker.py starter.py ./
# Links to the rooms, which are copied as they lie here.
COPY surehand surehand
COPY workflows workflows
COPY activities activities
COPY process process
COPY client client
COPY cli cli
COPY drill drill
COPY examples examples
# The command `surehand`, as a wheel installs it.
RUN printf '#!/opt/venv/bin/python\nimport sys\nsys.path.insert(0, "/app")\nfrom surehand.starter import main\nmain()\n' \
    > /opt/venv/bin/surehand \
    && printf '#!/opt/venv/bin/python\nimport runpy\nrunpy.run_path("/app/surehand/verify.py", run_name="__main__")\n' \
    > /opt/venv/bin/surehand-verify && chmod +x /opt/venv/bin/surehand /opt/venv/bin/surehand-verify
# Compiled here, because the file system is read-only where it runs.
RUN python -m compileall -q .
USER 10001
CMD ["python", "worker.py"]
