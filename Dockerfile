# Standalone training in a container:   docker build -t esync .  &&  docker run --rm esync
# Get the data before the build (scripts/get_data.sh), or mount it: docker run --rm -v "$PWD/data:/esync/data" esync
FROM python:3.11-slim-bookworm

# Of the system MXNet's wheel expects these; slim images lack them.
RUN apt-get update \
    && apt-get install -y --no-install-recommends libgomp1 libquadmath0 \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /esync

# Before the sources, so that a change in them does not install everything again.
COPY requirements.txt .
RUN pip install --no-cache-dir -r requirements.txt

COPY . .

ENTRYPOINT ["python", "main.py", "-dd", "./data/"]
CMD ["-m", "local", "-c", "1", "-e", "1000"]
