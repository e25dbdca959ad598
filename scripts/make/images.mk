##@ Images

# Only these images (folders of cluster/host/images); empty = all.
IMAGES ?=

.PHONY: images
images: tools ## build what has changed and put it into the bundle (IMAGES="pause jobset")
	@$(PY) -m tandem.images build $(IMAGES)

.PHONY: images-list
images-list: .venv/.ready ## every image, its content hash, and whether it is current
	@$(PY) -m tandem.images list $(IMAGES)

.PHONY: images-load
images-load: .venv/.ready ## load the bundle's images into the running host cluster
	@$(PY) -m tandem.images load $(IMAGES)
