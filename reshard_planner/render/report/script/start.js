// ---- all of it, in the order of the page
setUpFocus();
setUpPictures();
setUpPorts();
setUpFlows();
setUpTimeline();
setUpTensors();
document.documentElement.dataset.ready = "yes";
