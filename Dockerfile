# `make image` puts the two files in place and runs this. Nothing else is in the image: no shell, no package manager.
FROM scratch

ARG VERSION=dev
ARG COMMIT=unknown
LABEL org.opencontainers.image.title="deltabridge" \
      org.opencontainers.image.description="Change data capture for Kubernetes on NATS JetStream" \
      org.opencontainers.image.source="https://github.com/deltabridge/deltabridge" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${COMMIT}"

COPY bin/image/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY bin/image/bridge /bridge

# A number, not a name: there is no /etc/passwd, and Kubernetes checks runAsNonRoot against numbers only.
USER 65532:65532
EXPOSE 8080
ENTRYPOINT ["/bridge"]
